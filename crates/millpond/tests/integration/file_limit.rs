//! A limit of the process's files (`ulimit -f`) is an error of the call that meets it, and no signal that ends the program.

use millpond::{Budget, Buffer, Context, Error, Pool};

use crate::processes::alone;
use crate::shared::sim;

/// Makes calls fail that would make a file longer. The signal that comes with that is the system's own.
fn limit_files(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it changes a setting of this process only, which runs nothing but this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

#[test]
fn a_limit_of_file_sizes_ends_no_program() {
    alone("a_limit_of_file_sizes_ends_no_program", || {
        let name = format!("file-limit-{}", std::process::id());
        let host = Context::host().unwrap();
        let host_pool = Pool::builder(&host).build().unwrap();
        let (_sim, context, stream) = sim(64 << 20);
        let pool = Pool::builder(&context).build().unwrap();
        let buffer = Buffer::<u8>::new(&pool, 4096, &stream).unwrap();
        limit_files(1);
        let refused = Budget::named(&name, 1 << 20).unwrap_err();
        assert!(matches!(refused, Error::SharedBudget { .. }), "{refused}");
        // Its pages are a file's.
        let refused = host_pool.alloc(4096, &host.create_stream().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
        // So are the lease and, on this device, the page.
        let refused = buffer.share().unwrap_err();
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
        limit_files(libc::RLIM_INFINITY);
        buffer.share().unwrap();
    });
}
