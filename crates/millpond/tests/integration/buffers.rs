//! Buffers: what safe code may do with them, in the order of their streams.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use millpond::device::host::HostDevice;
use millpond::{Buffer, Context, Pool};

const LEN: usize = 100_000;

#[test]
fn a_write_comes_after_copies_on_other_streams() {
    let device = HostDevice::new().unwrap();
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).build().unwrap();
    let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
    let mut source = Buffer::from_slice(&pool, &[1; LEN], &stream).unwrap();
    let two = Buffer::from_slice(&pool, &[2; LEN], &stream).unwrap();
    let mut copies = [(); 3].map(|()| Buffer::<u8>::new(&pool, LEN, &other).unwrap());
    for (at, copy) in copies.iter_mut().enumerate() {
        // Work that is pending until the sender is dropped.
        let (hold, held) = channel::<()>();
        device.launch(other.handle(), move || _ = held.recv()).unwrap();
        copy.copy_from(&source).unwrap();
        match at {
            0 => source.set_zero().unwrap(),
            1 => source.copy_from_slice(&[9; LEN]).unwrap(),
            _ => source.copy_from(&two).unwrap(),
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!stream.is_idle().unwrap(), "it waits for the copy");
        drop(hold);
    }
    assert_eq!(copies.map(|copy| copy.to_vec().unwrap()[LEN - 1]), [1, 0, 9]);
    assert_eq!(source.to_vec().unwrap(), vec![2; LEN]);
}
