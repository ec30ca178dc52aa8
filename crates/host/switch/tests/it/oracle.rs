//! Compares the switch with a reference model: no frame is lost, duplicated or misdirected, and each leaves
//! with the tag that its port requires.

use std::collections::HashMap;

use crate::common::*;
use proptest::prelude::*;
use ringpass_port::MacAddress;
use ringpass_switch::{PortPolicy, VlanSet, Vlans};

#[derive(Clone, Debug)]
struct Sent {
    port: usize,
    to: [u8; 6],
    from: [u8; 6],
    /// All 16 bits of the tag's value.
    tag: Option<u16>,
    /// Whether the tag is in the metadata.
    beside: bool,
    /// Whether the frame lies in two buffers.
    chained: bool,
}

fn vlans() -> impl Strategy<Value = Vlans> {
    let trunk = |allowed: &[u16], native| Vlans::Trunk { allowed: VlanSet::of(allowed.to_vec()), native };
    prop_oneof![
        2 => Just(Vlans::default()),
        2 => Just(Vlans::Access(10)),
        1 => Just(Vlans::Access(20)),
        2 => Just(trunk(&[10, 20], None)),
        1 => Just(trunk(&[10], Some(20))),
        1 => Just(trunk(&[10, 20], Some(10))),
    ]
}

fn rules() -> impl Strategy<Value = PortPolicy> {
    let sources = prop_oneof![5 => Just(vec![]), 1 => Just(vec![MacAddress(mac(1)), MacAddress(mac(2))])];
    (vlans(), prop::option::of(0..2u16), sources).prop_map(|(vlans, isolation, sources)| PortPolicy {
        vlans,
        isolation,
        sources,
        ..Default::default()
    })
}

fn sent() -> impl Strategy<Value = Sent> {
    let group = [BROADCAST, [0x33, 0x33, 0, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 14], [1, 0x80, 0xc2, 0, 0, 16]];
    let to = prop_oneof![4 => (0..5u8).prop_map(mac), 2 => prop::sample::select(group.to_vec())];
    let from = prop_oneof![20 => (0..5u8).prop_map(mac), 1 => Just(BROADCAST), 1 => Just([0; 6])];
    let tag = prop_oneof![2 => Just(None), 4 => prop::sample::select(vec![10, 20, 30, 0, 4095, 0x600a]).prop_map(Some)];
    (0..5usize, to, from, tag, any::<bool>(), any::<bool>()).prop_map(|(port, to, from, tag, beside, chained)| Sent {
        port,
        to,
        from,
        tag,
        beside,
        chained,
    })
}

/// The reference model.
struct Model<'a> {
    rules: &'a [PortPolicy],
    stations: HashMap<(u16, [u8; 6]), usize>,
}

fn untagged(vlans: &Vlans) -> Option<u16> {
    match vlans {
        Vlans::Access(id) => Some(*id),
        Vlans::Trunk { native, .. } => *native,
    }
}

fn member(vlans: &Vlans, id: u16) -> bool {
    untagged(vlans) == Some(id) || matches!(vlans, Vlans::Trunk { allowed, .. } if allowed.has(id))
}

impl Model<'_> {
    /// Returns the VLAN of a frame; `None` if its port is no member.
    fn vlan(&self, sent: &Sent) -> Option<u16> {
        let vlans = &self.rules[sent.port].vlans;
        match sent.tag.map(|tag| tag & 0xfff) {
            None | Some(0) => untagged(vlans),
            Some(id) => Some(id).filter(|&id| !matches!(vlans, Vlans::Access(_)) && member(vlans, id)),
        }
    }

    /// Returns the ports that a frame goes to.
    fn ports(&mut self, sent: &Sent) -> Vec<usize> {
        let own = &self.rules[sent.port];
        let Some(vlan) = self.vlan(sent) else { return Vec::new() };
        let allowed = own.sources.is_empty() || own.sources.contains(&MacAddress(sent.from));
        if sent.from[0] & 1 != 0 || sent.from == [0; 6] || !allowed {
            return Vec::new();
        }
        self.stations.insert((vlan, sent.from), sent.port);
        if sent.to[..5] == [1, 0x80, 0xc2, 0, 0] && sent.to[5] < 16 {
            return Vec::new();
        }
        let may = |port: usize| {
            let other = &self.rules[port];
            let together = own.isolation.is_some() && own.isolation == other.isolation;
            port != sent.port && !together && member(&other.vlans, vlan)
        };
        match self.stations.get(&(vlan, sent.to)) {
            Some(&port) => Some(port).filter(|&port| may(port)).into_iter().collect(),
            None => (0..self.rules.len()).filter(|&port| may(port)).collect(),
        }
    }

    /// Returns a frame as it leaves a port.
    fn frame(&self, sent: &Sent, port: usize, number: u32) -> Vec<u8> {
        let vlan = self.vlan(sent).expect("it has one");
        if untagged(&self.rules[port].vlans) == Some(vlan) {
            return frame(sent.to, sent.from, number);
        }
        let tag = sent.tag.filter(|tag| tag & 0xfff == vlan).unwrap_or(vlan);
        tagged(sent.to, sent.from, tag, number)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..Default::default() })]
    #[test]
    fn frames_go_where_they_must_and_nowhere_else(
        rules in prop::collection::vec(rules(), 2..6),
        rounds in prop::collection::vec(prop::collection::vec(sent(), 1..12), 1..12),
    ) {
        let mut rig = Rig::new(&free(), &rules);
        let mut model = Model { rules: &rules, stations: HashMap::new() };
        let (mut number, mut sent_in_all) = (0, 0);
        for mut round in rounds {
            // All frames of a burst come from one port.
            let port = round[0].port % rules.len();
            let mut expected = vec![Vec::new(); rules.len()];
            let mut packets = Vec::new();
            for sent in &mut round {
                sent.port = port;
                number += 1;
                let bytes = match sent.tag.filter(|_| !sent.beside) {
                    Some(tag) => tagged(sent.to, sent.from, tag, number),
                    None => frame(sent.to, sent.from, number),
                };
                let (first, rest) = bytes.split_at(if sent.chained { 30 } else { bytes.len() });
                let mut packet = packet(&rig.pool, first);
                if sent.chained {
                    packet.append(crate::common::packet(&rig.pool, rest));
                }
                if let Some(tag) = sent.tag.filter(|_| sent.beside) {
                    packet.set_vlan(tag);
                }
                packets.push(packet);
                for to in model.ports(sent) {
                    expected[to].push(model.frame(sent, to, number));
                }
            }
            sent_in_all += packets.len() as u64;
            rig.send_packets(port, packets);
            for (port, expected) in expected.into_iter().enumerate() {
                prop_assert_eq!(rig.receive(port), expected, "out of port {}: {:?}", port, round);
            }
        }
        let mut table: Vec<_> = rig.switch.table().iter().map(|entry| ((entry.vlan, entry.mac.0), entry.port)).collect();
        let mut expected: Vec<_> = model.stations.into_iter().collect();
        table.sort();
        expected.sort();
        prop_assert_eq!(table, expected);
        prop_assert_eq!(accounted(&rig.switch, rules.len()), sent_in_all);
        let Rig { pool, switch, datapath, far, .. } = rig;
        drop((switch, datapath, far));
        prop_assert_eq!(pool.outstanding(1), 0, "buffers came back");
    }
}
