//! The status of a run as metrics.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ringpass::Stats;
use ringpass::control::{MetricsFormat, PortStatus, Status};

/// Returns the text.
///
/// # Errors
/// None that is known of.
pub fn encode(status: Status, format: MetricsFormat) -> Result<String, String> {
    let mut registry = Registry::with_prefix("ringpass");
    registry.register_collector(Box::new(Snapshot(status)));
    let mut buffer = String::new();
    let encoded = match format {
        MetricsFormat::OpenMetrics => text::encode(&mut buffer, &registry),
        MetricsFormat::Prometheus => prometheus_text::encode(&mut buffer, &registry),
    };
    encoded.map_err(|error| error.to_string())?;
    Ok(buffer)
}

/// Metrics are made from a status when they are asked for, so that nothing is counted twice.
#[derive(Debug)]
struct Snapshot(Status);

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A counter of a queue: its name, its help, and where it is.
type QueueCounter = (&'static str, &'static str, fn(&Stats) -> u64);

/// Counters of a queue.
const QUEUE: [QueueCounter; 6] = [
    ("port_received_packets", "Frames received by a queue of a port", |stats| stats.rx_packets),
    ("port_received_bytes", "Bytes received by a queue of a port, without CRC", |stats| stats.rx_bytes),
    ("port_received_drops", "Frames that a queue of a port has lost", |stats| stats.rx_drops),
    ("port_sent_packets", "Frames sent by a queue of a port", |stats| stats.tx_packets),
    ("port_sent_bytes", "Bytes sent by a queue of a port, without CRC", |stats| stats.tx_bytes),
    ("port_sent_drops", "Frames that a queue of a port was to send and has not", |stats| stats.tx_drops),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let Status { seconds, ports, switches, workers, buffers, buffers_in_use, .. } = &self.0;
        let mut to = Encoder(&mut encoder);
        to.plain("run_seconds", "Time since the start of the run", *seconds)?;
        for (name, help, count) in QUEUE {
            to.counter(name, help, ports.iter().flat_map(|port| of_queues(port, count)))?;
        }
        let up = |port: &PortStatus| f64::from(u8::from(port.link));
        to.gauge("port_link", "1 if the port has a link", ports.iter().map(|port| (labels(port), up(port))))?;
        let runs = |port: &PortStatus| f64::from(u8::from(port.state != "gone"));
        to.gauge("port_up", "1 unless the port is gone", ports.iter().map(|port| (labels(port), runs(port))))?;
        let kinds = ports.iter().flat_map(|port| {
            let of_kind = move |(kind, count): (&String, &u64)| {
                let mut labels: Vec<(&'static str, String)> =
                    labels(port).into_iter().map(|(key, value)| (key, value.to_owned())).collect();
                labels.push(("kind", kind.clone()));
                (labels, *count)
            };
            port.extended.iter().map(of_kind)
        });
        to.counter("port_events", "What a port and its switch count beside frames, by kind", kinds)?;
        let stations = switches.iter().map(|switch| (vec![("switch", &switch.name[..])], switch.stations as f64));
        to.gauge("switch_stations", "Stations in the table of a switch", stations)?;
        to.plain("buffers", "Packet buffers of the pool", *buffers as f64)?;
        let in_use = *buffers_in_use as f64;
        to.plain("buffers_in_use", "Packet buffers in use, in caches of queues among others", in_use)?;
        let of = |number: usize| vec![("worker", number.to_string())];
        let each = || workers.iter().enumerate();
        let cycles = each().map(|(number, worker)| (of(number), worker.busy_cycles));
        to.counter("worker_busy_cycles", "Time stamp counter cycles of rounds that moved packets", cycles)?;
        let dropped = each().map(|(number, worker)| (of(number), worker.dropped));
        to.counter("worker_drops", "Packets that a worker had to drop", dropped)?;
        let sleeps = each().map(|(number, worker)| (of(number), worker.sleeps));
        to.counter("worker_sleeps", "How often a worker has slept", sleeps)?;
        let help = "Packets that a worker moved in a round; a round without any is an empty poll";
        let mut metric = to.0.encode_descriptor("worker_round_packets", help, None, MetricType::Histogram)?;
        for (number, worker) in each() {
            let last = worker.rounds.len().saturating_sub(1);
            // Size N is that of rounds with fewer than 2^N packets.
            let bound = |size: usize| if size == last { f64::INFINITY } else { ((1_u64 << size) - 1) as f64 };
            let buckets: Vec<(f64, u64)> =
                worker.rounds.iter().enumerate().map(|(size, count)| (bound(size), *count)).collect();
            let count = worker.rounds.iter().sum();
            metric.encode_family(&of(number))?.encode_histogram::<NoLabelSet>(
                worker.moved as f64,
                count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Returns the labels of a port.
fn labels(port: &PortStatus) -> Labels<'_> {
    let switch = port.switch.as_deref().map(|switch| ("switch", switch));
    std::iter::once(("port", &port.name[..])).chain(switch).collect()
}

/// Returns a counter of each queue of a port, or of the port where queues are not counted.
fn of_queues(port: &PortStatus, count: fn(&Stats) -> u64) -> Vec<(Vec<(&'static str, String)>, u64)> {
    let with = |queue: Option<usize>| {
        let own = labels(port).into_iter().map(|(key, value)| (key, value.to_owned()));
        own.chain(queue.map(|queue| ("queue", queue.to_string()))).collect()
    };
    match &port.queues[..] {
        [] => vec![(with(None), count(&port.stats))],
        queues => queues.iter().enumerate().map(|(number, stats)| (with(Some(number)), count(stats))).collect(),
    }
}

/// Writes metrics.
struct Encoder<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Encoder<'_, '_> {
    fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        Ok(())
    }

    fn plain(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
