//! The job, as its framework allocates.

fn main() -> job::Outcome {
    job_kornia::main()
}
