//! Counts packets and bytes of each flow, and prints them as JSON when the input ends:
//! `cargo run --release -p ringpass --example flows -- pcap:trace.pcap,speed=max`

use std::collections::BTreeMap;

use ringpass::headers::Flow;
use ringpass::{Burst, Config, Error, Idle};

fn main() -> Result<(), Error> {
    let mut ports = ringpass::open(std::env::args().skip(1), &Config::default())?;
    let mut queues = ports.take_one()?;
    // `None` is the key of packets without an IP header.
    let (mut burst, mut idle, mut flows) = (Burst::new(32), Idle::default(), BTreeMap::<_, [usize; 2]>::new());
    loop {
        let received = queues.rx.rx_burst(&mut burst);
        for packet in burst.iter() {
            let [packets, bytes] = flows.entry(Flow::of(packet)).or_default();
            (*packets, *bytes) = (*packets + 1, *bytes + packet.total_len());
        }
        burst.clear();
        if received == 0 && ports.check()? {
            for (flow, [packets, bytes]) in flows {
                let flow = flow.map_or("other".into(), |flow| flow.to_string());
                println!("{}", serde_json::json!({ "flow": flow, "packets": packets, "bytes": bytes }));
            }
            return Ok(());
        }
        idle.after(received, &mut [&mut *queues.rx]);
    }
}
