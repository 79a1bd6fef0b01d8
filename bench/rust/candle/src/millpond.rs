//! The same, with the line.

use millpond_global as _;

fn main() -> job::Outcome {
    job_candle::main()
}
