//! Printed statistics: live lines and a summary for people, JSON for programs.

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringpass::{Port, Stats};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::output::{LIVE_LINES, is_quiet, is_verbose, note, print_notices};

/// A subcommand's additions to the ports' statistics, by name.
pub type Fields = Map<String, Value>;

/// Creates fields from pairs of name and value.
pub fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Stream that statistics are printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error, when standard output carries the data.
    Stderr,
}

/// Prints the statistics of a run.
pub struct Printer {
    json: bool,
    /// Stream that is printed to.
    pub sink: OutputStream,
    /// Whether lines are printed during the run. If not, there is only the summary.
    pub live: bool,
    before: (Duration, Vec<Stats>),
}

pub use crate::output::print_line;

/// Longest line of notes in characters, unless a single note is longer.
const NOTES_WIDTH: usize = 100;

/// Returns a port's notes as lines, each with the port's name in front: all of them with `-v`, else what fits in one line.
pub fn note_lines(name: &str, notes: &[String]) -> Vec<String> {
    let mut lines = packed(name, notes);
    lines.truncate(if is_verbose() { lines.len() } else { 1 });
    lines
}

fn packed(name: &str, notes: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for note in notes {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + note.chars().count() <= NOTES_WIDTH => {
                line.push_str("; ");
                line.push_str(note);
            }
            _ => lines.push(format!("{name}: {note}")),
        }
    }
    lines
}

#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    seconds: f64,
    ports: Vec<PortEvent<'a>>,
    #[serde(flatten)]
    more: Fields,
}

#[derive(Serialize)]
struct PortEvent<'a> {
    name: &'a str,
    #[serde(flatten)]
    stats: &'a Stats,
    /// Counters specific to this kind of port; only in the summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    extended: Option<Fields>,
    /// Counters of each queue pair; only in the summary, and of ports with several queues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<Stats>,
}

/// Counters of a port at the end of a run.
pub struct PortSummary {
    /// Those that all ports have.
    pub stats: Stats,
    /// Those of each queue pair, if the port counts by queue.
    pub queues: Vec<Stats>,
    /// Counters of this kind of port, by name.
    pub extended: Vec<(&'static str, u64)>,
}

fn json(event: &'static str, elapsed: Duration, ports: Vec<PortEvent<'_>>, more: Fields) -> String {
    let seconds = (elapsed.as_secs_f64() * 1000.0).round() / 1000.0;
    serde_json::to_string(&Event { event, seconds, ports, more }).expect("strings and numbers")
}

impl Printer {
    /// Creates a printer to standard output.
    pub fn new(json: bool) -> Self {
        Self { json, sink: OutputStream::Stdout, live: !is_quiet(), before: Default::default() }
    }

    fn print(&self, text: &str) {
        match self.sink {
            OutputStream::Stdout => print_line(text),
            OutputStream::Stderr => errln!("{text}"),
        }
    }

    fn terminal(&self) -> bool {
        match self.sink {
            OutputStream::Stdout => io::stdout().is_terminal(),
            OutputStream::Stderr => io::stderr().is_terminal(),
        }
    }

    /// Prints notices, the notes of the ports, which describe the options chosen when they were opened, and `more`.
    pub fn start(&mut self, ports: &mut [Box<dyn Port>], more: &[String]) {
        print_notices();
        let notes = ports.iter().flat_map(|port| note_lines(port.name(), &port.notes()));
        for line in notes.chain(more.iter().cloned()) {
            match self.json {
                true => note(&line),
                false if is_quiet() => {}
                false => self.print(&line),
            }
        }
        self.before.1 = ports.iter_mut().map(|port| port.stats()).collect();
    }

    /// Prints the changes since the last call, if lines are printed during the run.
    pub fn live(&mut self, elapsed: Duration, ports: &mut [Box<dyn Port>], more: Fields, picture: Vec<String>) {
        if self.live {
            self.report(elapsed, ports, more, picture);
        }
    }

    /// Prints the changes since the last call, and on a terminal the lines of a picture.
    pub fn report(&mut self, elapsed: Duration, ports: &mut [Box<dyn Port>], more: Fields, picture: Vec<String>) {
        let stats: Vec<Stats> = ports.iter_mut().map(|port| port.stats()).collect();
        let names: Vec<&str> = ports.iter().map(|port| port.name()).collect();
        if self.json {
            let event = |(name, stats)| PortEvent { name, stats, extended: None, queues: Vec::new() };
            return self.print(&json("stats", elapsed, names.into_iter().zip(&stats).map(event).collect(), more));
        }
        let seconds = (elapsed - self.before.0).as_secs_f64();
        let width = names.iter().map(|name| name.chars().count().min(NAME_WIDTH)).max().unwrap_or(0);
        let mut lines: Vec<String> = Vec::new();
        for ((name, now), before) in names.iter().zip(&stats).zip(&self.before.1) {
            lines.push(live_line(elapsed, &shorten(name), width, seconds, now, before));
        }
        let more = to_text(&more);
        if !more.is_empty() {
            lines.push(format!("       {more}"));
        }
        if self.terminal() {
            lines.extend(picture);
            // Moves the cursor up to the first of the old lines, then clears each line and truncates it at the
            // terminal's width.
            let old = LIVE_LINES.load(Ordering::Relaxed);
            let up = if old > 0 { format!("\x1b[{old}A") } else { String::new() };
            lines.iter_mut().for_each(|line| *line = format!("\x1b[2K\x1b[?7l{line}\x1b[?7h"));
            lines[0].insert_str(0, &up);
        }
        self.print(&lines.join("\n"));
        LIVE_LINES.store(lines.len(), Ordering::Relaxed);
        self.before = (elapsed, stats);
    }

    /// Leaves the lines that a terminal shows where they are, as something else follows them.
    pub fn keep_lines(&mut self) {
        LIVE_LINES.store(0, Ordering::Relaxed);
    }

    /// Prints the totals, with further counters of each port.
    pub fn summary(
        &mut self,
        elapsed: Duration,
        ports: &[Box<dyn Port>],
        mut summaries: Vec<PortSummary>,
        more: Fields,
    ) {
        let names: Vec<&str> = ports.iter().map(|port| port.name()).collect();
        // The counters of an only queue are those of its port.
        summaries.iter_mut().filter(|port| port.queues.len() == 1).for_each(|port| port.queues.clear());
        if self.json {
            let mut events = Vec::new();
            for (name, port) in names.iter().zip(&summaries) {
                let extended = (!port.extended.is_empty()).then(|| named(&port.extended));
                events.push(PortEvent { name, stats: &port.stats, extended, queues: port.queues.clone() });
            }
            return self.print(&json("summary", elapsed, events, more));
        }
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(10);
        let title = format!("{seconds:.1} s in all");
        let mut lines =
            vec![format!("{title:<width$}      {:>13} {:>16} {:>9} {:>10}", "packets", "bytes", "drops", "rate")];
        for (name, PortSummary { stats: s, .. }) in names.iter().zip(&summaries) {
            for (name, direction, packets, bytes, drops) in
                [(*name, "rx", s.rx_packets, s.rx_bytes, s.rx_drops), ("", "tx", s.tx_packets, s.tx_bytes, s.tx_drops)]
            {
                let rate = format!("{:>10} {:>12}", pps(packets as f64 / seconds), bps(bytes as f64 * 8.0 / seconds));
                let packets = grouped(packets);
                let bytes = grouped(bytes);
                let drops = grouped(drops);
                lines.push(format!("{name:<width$}  {direction}  {packets:>13} {bytes:>16} {drops:>9} {rate}"));
            }
        }
        for (name, PortSummary { queues, extended, .. }) in names.iter().zip(&summaries) {
            if !queues.is_empty() {
                let list = |field: fn(&Stats) -> u64| {
                    queues.iter().map(|queue| grouped(field(queue))).collect::<Vec<_>>().join(" ")
                };
                let (received, sent) = (list(|queue| queue.rx_packets), list(|queue| queue.tx_packets));
                lines.push(format!("{name}: packets by queue: received {received}, sent {sent}"));
            }
            // Packets and bytes are in the table above. Other counters are printed unless they are 0.
            let mut extended = named(extended);
            extended.retain(|name, n| !name.ends_with("_packets") && !name.ends_with("_bytes") && *n != 0);
            if !extended.is_empty() {
                lines.push(format!("{name}: {}", to_text(&extended)));
            }
        }
        let text = to_text(&more);
        if !text.is_empty() {
            lines.push(text);
        }
        lines.extend(part_lines(&more));
        self.print(&lines.join("\n"));
    }
}

/// Returns counters as fields.
fn named(counters: &[(&str, u64)]) -> Fields {
    counters.iter().map(|&(name, n)| (name.to_owned(), n.into())).collect()
}

/// Largest number of characters of a port's name in live lines.
const NAME_WIDTH: usize = 24;

fn shorten(name: &str) -> String {
    let chars = name.chars().count();
    if chars <= NAME_WIDTH { name.into() } else { name.chars().take(NAME_WIDTH - 1).chain(['…']).collect() }
}

fn live_line(elapsed: Duration, name: &str, width: usize, seconds: f64, now: &Stats, before: &Stats) -> String {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
    let side = |packets, bytes| format!("{:>10} {:>12}", pps(packets), bps(bytes * 8.0));
    let rx = side(rate(now.rx_packets, before.rx_packets), rate(now.rx_bytes, before.rx_bytes));
    let tx = side(rate(now.tx_packets, before.tx_packets), rate(now.tx_bytes, before.tx_bytes));
    let drops = |now: u64, before: u64| grouped(now.saturating_sub(before));
    let (rx_drops, tx_drops) = (drops(now.rx_drops, before.rx_drops), drops(now.tx_drops, before.tx_drops));
    let passed = if seconds < 0.9 { format!("{:.1}", elapsed.as_secs_f64()) } else { elapsed.as_secs().to_string() };
    format!("{passed:>3} s  {name:<width$}  rx {rx}  tx {tx}  drops {rx_drops}/{tx_drops}")
}

/// Formats the numbers and texts among the fields for people.
fn to_text(fields: &Fields) -> String {
    let word = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::Number(n) => n.as_u64().map_or_else(|| n.to_string(), grouped),
            Value::String(text) => text.clone(),
            _ => return None,
        };
        let (name, unit) = name.strip_suffix("_us").map_or((name.as_str(), ""), |name| (name, " µs"));
        Some(format!("{} {value}{unit}", name.replace('_', " ")))
    };
    fields.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// Formats fields of several things, such as `streams`, for people: a line for each.
fn part_lines(fields: &Fields) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in fields {
        let parts = value.as_array().into_iter().flatten().filter_map(Value::as_object);
        let name = name.strip_suffix('s').unwrap_or(name);
        lines.extend((1..).zip(parts).map(|(number, part): (u32, _)| format!("{name} {number}: {}", to_text(part))));
    }
    lines
}

fn scaled(value: f64, units: [&str; 4]) -> String {
    let (divisor, unit) = match value {
        v if v >= 1e9 && !units[3].is_empty() => (1e9, units[3]),
        v if v >= 1e6 => (1e6, units[2]),
        v if v >= 1e3 => (1e3, units[1]),
        _ => return format!("{value:.0} {}", units[0]),
    };
    format!("{:.2} {unit}", value / divisor)
}

/// Formats a number of packets a second.
pub fn pps(value: f64) -> String {
    scaled(value, ["pps", "kpps", "Mpps", ""])
}

/// Formats a number of bits a second, counting the frames alone.
pub fn bps(value: f64) -> String {
    scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// Formats a number with thousands separators.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: Stats = Stats { rx_packets: 1, rx_bytes: 60, rx_drops: 2, tx_packets: 3, tx_bytes: 180, tx_drops: 4 };

    #[test]
    fn json_is_one_line_of_the_agreed_shape() {
        let more = fields([("forwarder_drops", 5.into())]);
        let port = PortEvent { name: "null", stats: &STATS, extended: None, queues: Vec::new() };
        let line = json("stats", Duration::from_micros(1_500_400), vec![port], more);
        assert_eq!(
            line,
            r#"{"event":"stats","seconds":1.5,"ports":[{"name":"null","rx_packets":1,"rx_bytes":60,"rx_drops":2,"#
                .to_owned()
                + r#""tx_packets":3,"tx_bytes":180,"tx_drops":4}],"forwarder_drops":5}"#
        );
    }

    #[test]
    fn notes_share_lines() {
        let notes = ["a".repeat(40), "b".repeat(40), "c".repeat(20), "d".repeat(120)];
        let [a, b, c, d] = &notes;
        assert_eq!(packed("x", &notes), [format!("x: {a}; {b}"), format!("x: {c}"), format!("x: {d}")]);
        assert_eq!(note_lines("x", &notes), [format!("x: {a}; {b}")]);
        assert_eq!(note_lines("x", &[]), [""; 0]);
    }

    #[test]
    fn numbers_are_easy_on_the_eye() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.4, 999.0, 14_880_952.0, 2e9].map(pps), ["0 pps", "999 pps", "14.88 Mpps", "2000.00 Mpps"]);
        assert_eq!(bps(7.14e9), "7.14 Gbit/s");
        assert_eq!(
            to_text(&fields([("b_c", 1234.into()), ("d_us", 1.5.into()), ("e", [1].into())])),
            "b c 1,234, d 1.5 µs"
        );
    }

    #[test]
    fn a_live_line_shows_the_last_second() {
        let now = Stats { rx_packets: 1_000_001, rx_bytes: 60_000_060, rx_drops: 9, ..STATS };
        let line = live_line(Duration::from_secs(3), "tap:a", 6, 1.0, &now, &STATS);
        assert_eq!(line, "  3 s  tap:a   rx  1.00 Mpps 480.00 Mbit/s  tx      0 pps      0 bit/s  drops 7/0");
        assert_eq!(shorten("model:packet:enp129s0f1np1x"), "model:packet:enp129s0f1…");
    }
}
