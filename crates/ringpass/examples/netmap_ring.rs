//! Puts frames into a netmap ring, slot by slot, as programs of netmap do. Needs `ringpass netmapd`:
//! `cargo run --release -p ringpass --example netmap_ring -- vale0:a 1000`

use std::time::Duration;

use ringpass::netmap::client::{Error, Port, default_socket};
use ringpass::netmap::request::Register;
use ringpass::netmap::{Flags, Slot};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "vale0:a".into());
    let count: u32 = arguments.next().map_or(Ok(1000), |count| count.parse())?;
    let port = Port::open(&name.parse()?, &default_socket()?, Register::default())?;
    let tx = &port.tx()[0];
    let mut frame = [0xff; 60];
    let mut sent = 0;
    while sent < count {
        // Slots from `head` to before `tail` are the program's.
        let slots = tx.own().min(count - sent);
        for position in tx.first(slots) {
            frame[56..].copy_from_slice(&sent.to_be_bytes());
            let slot = Slot { len: 60, flags: Flags::default(), ..tx.ring().slot(position) };
            assert!(port.buffers().write(slot, &frame), "a buffer of its own");
            tx.ring().set(position, slot);
            sent += 1;
        }
        // Moves `head` and `cur`, and tells the server, which moves `tail`.
        tx.release_slots(slots);
        tx.sync()?;
        if tx.own() == 0 && !port.wait([tx].into_iter(), Duration::from_secs(1))? {
            return Err(Error::Os("nobody takes the frames".into()).into());
        }
    }
    println!("{sent} frames in {name}");
    Ok(())
}
