//! Counts packets and bytes of each flow, and prints them as JSON when the input ends:
//! `cargo run --release -p ringpass --example flows -- pcap:trace.pcap,speed=max`

use std::collections::BTreeMap;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use ringpass::{Burst, Config, Error, Idle};

fn main() -> Result<(), Error> {
    let mut ports = ringpass::open(std::env::args().skip(1), &Config::default())?;
    let mut queues = ports.take_one()?;
    let (mut burst, mut idle, mut flows) = (Burst::new(32), Idle::default(), BTreeMap::<_, [usize; 2]>::new());
    loop {
        let received = queues.rx.rx_burst(&mut burst);
        // A copy is parsed: whoever has sent the frame may still write to it.
        for frame in burst.iter().map(|packet| packet.to_vec()) {
            let [packets, bytes] = flows.entry(flow(&frame)).or_default();
            (*packets, *bytes) = (*packets + 1, *bytes + frame.len());
        }
        burst.clear();
        if received == 0 && ports.check()? {
            for (flow, [packets, bytes]) in flows {
                println!("{}", serde_json::json!({ "flow": flow, "packets": packets, "bytes": bytes }));
            }
            return Ok(());
        }
        idle.after(received, &mut [&mut *queues.rx]);
    }
}

fn flow(frame: &[u8]) -> String {
    let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return "malformed".into() };
    let Some(NetSlice::Ipv4(ip)) = packet.net else { return "other".into() };
    let (from, to) = (ip.header().source_addr(), ip.header().destination_addr());
    match packet.transport {
        Some(TransportSlice::Udp(udp)) => format!("udp {from}:{} {to}:{}", udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Tcp(tcp)) => format!("tcp {from}:{} {to}:{}", tcp.source_port(), tcp.destination_port()),
        _ => format!("{:?} {from} {to}", ip.payload_ip_number()),
    }
}
