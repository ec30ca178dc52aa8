//! Rates of a program's ports and workers, from one status to the next.

use std::collections::{HashMap, VecDeque};

use ringpass::control::{PortStatus, Status};
use ringpass::{Stats, cycles};

/// Rates of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortRates {
    /// Frames and bits received in a second.
    pub rx_pps: f64,
    pub rx_bps: f64,
    /// Frames and bits sent in a second.
    pub tx_pps: f64,
    pub tx_bps: f64,
    /// Frames lost in a second, received and to be sent.
    pub drops: f64,
}

/// What was measured last, and before.
pub struct Rates {
    pub status: Status,
    /// Rates of each port, in the order of the status.
    pub ports: Vec<PortRates>,
    /// Share of each worker's time that went to rounds with packets, 0 to 1.
    pub busy: Vec<f64>,
    /// Frames received and sent in a second, of each port by name, the last one first.
    history: HashMap<String, VecDeque<u64>>,
    /// Time stamp counter when the status came.
    at: u64,
}

impl Rates {
    /// Number of rates that are kept for a sparkline.
    pub const KEPT: usize = 60;

    /// Begins with a status, without rates.
    pub fn new(status: Status) -> Self {
        let (ports, busy) = (vec![PortRates::default(); status.ports.len()], vec![0.0; status.workers.len()]);
        Self { status, ports, busy, history: HashMap::new(), at: cycles() }
    }

    /// Takes the next status.
    pub fn update(&mut self, status: Status) {
        let at = cycles();
        let passed = at.wrapping_sub(self.at).max(1) as f64;
        let seconds = (status.seconds - self.status.seconds).max(1e-3);
        let before = |name: &str| self.status.ports.iter().find(|port| port.name == name);
        let rates = |port: &PortStatus| {
            // A port that was not there before has begun at zero.
            rates(port.stats, before(&port.name).map(|port| port.stats).unwrap_or_default(), seconds)
        };
        self.ports = status.ports.iter().map(rates).collect();
        let busy = |(number, worker): (usize, &ringpass::control::WorkerStatus)| {
            let before = self.status.workers.get(number).map_or(0, |worker| worker.busy_cycles);
            (worker.busy_cycles.saturating_sub(before) as f64 / passed).min(1.0)
        };
        self.busy = status.workers.iter().enumerate().map(busy).collect();
        self.history.retain(|name, _| status.ports.iter().any(|port| port.name == *name));
        for (port, rates) in status.ports.iter().zip(&self.ports) {
            let history = self.history.entry(port.name.clone()).or_default();
            history.push_front((rates.rx_pps + rates.tx_pps) as u64);
            history.truncate(Self::KEPT);
        }
        (self.status, self.at) = (status, at);
    }

    /// Returns the frames a second of a port, received and sent, the oldest first.
    pub fn history(&self, port: &str) -> Vec<u64> {
        self.history.get(port).into_iter().flatten().rev().copied().collect()
    }
}

fn rates(now: Stats, before: Stats, seconds: f64) -> PortRates {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    PortRates {
        rx_pps: rate(now.rx_packets, before.rx_packets),
        rx_bps: 8.0 * rate(now.rx_bytes, before.rx_bytes),
        tx_pps: rate(now.tx_packets, before.tx_packets),
        tx_bps: 8.0 * rate(now.tx_bytes, before.tx_bytes),
        drops: rate(now.rx_drops + now.tx_drops, before.rx_drops + before.tx_drops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_status_before() {
        let port = |name: &str, packets| {
            let stats = Stats { rx_packets: packets, rx_bytes: 60 * packets, tx_drops: 2, ..Stats::default() };
            PortStatus { name: name.into(), stats, ..PortStatus::default() }
        };
        let status = |seconds, ports| Status { seconds, ports, ..Status::default() };
        let mut rates = Rates::new(status(1.0, vec![port("a", 100)]));
        rates.update(status(3.0, vec![port("b", 10), port("a", 300)]));
        let [b, a] = rates.ports[..] else { panic!() };
        assert_eq!((a.rx_pps, a.rx_bps, a.drops), (100.0, 48_000.0, 0.0));
        assert_eq!((b.rx_pps, b.drops), (5.0, 1.0));
        assert_eq!(rates.history("a"), [100]);
        rates.update(status(4.0, vec![port("a", 300)]));
        assert_eq!((rates.history("a"), rates.history("b")), (vec![100, 0], vec![]));
    }
}
