//! The screen: a line of what runs, a table of ports, and all counters of one port.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};
use ringpass::RingStatus;
use ringpass::control::{EndStatus, PortStatus};

use super::rates::{PortRates, Rates};
use crate::stats::{bps, grouped, pps};

/// By what ports are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the program has them.
    Program,
    Name,
    Received,
    Sent,
    Drops,
}

impl Order {
    /// Returns the next one.
    pub fn next(self) -> Self {
        match self {
            Self::Program => Self::Received,
            Self::Received => Self::Sent,
            Self::Sent => Self::Drops,
            Self::Drops => Self::Name,
            Self::Name => Self::Program,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Program => "none",
            Self::Name => "name",
            Self::Received => "received",
            Self::Sent => "sent",
            Self::Drops => "drops",
        }
    }
}

/// What is shown.
pub struct View {
    pub order: Order,
    /// Name of the port whose line is selected, if it is there.
    pub selected: Option<String>,
    /// Whether all of that port is shown.
    pub zoomed: bool,
    /// Problem with the program, if it does not answer.
    pub problem: Option<String>,
}

impl View {
    /// Returns the numbers of the ports, in the order in which they are shown.
    pub fn sorted(&self, rates: &Rates) -> Vec<usize> {
        let mut ports: Vec<usize> = (0..rates.status.ports.len()).collect();
        let by = |key: fn(&PortRates) -> f64| {
            move |one: &usize, other: &usize| key(&rates.ports[*other]).total_cmp(&key(&rates.ports[*one]))
        };
        match self.order {
            Order::Program => {}
            Order::Name => ports.sort_by_key(|port| rates.status.ports[*port].name.clone()),
            Order::Received => ports.sort_by(by(|rates| rates.rx_pps)),
            Order::Sent => ports.sort_by(by(|rates| rates.tx_pps)),
            Order::Drops => ports.sort_by(by(|rates| rates.drops)),
        }
        ports
    }

    /// Selects the port that is `by` lines further down, or up.
    pub fn move_by(&mut self, rates: &Rates, by: isize) {
        let ports = self.sorted(rates);
        let names = || ports.iter().map(|port| &rates.status.ports[*port].name);
        let now = names().position(|name| Some(name) == self.selected.as_ref());
        let next = match now {
            Some(now) => now.saturating_add_signed(by).min(ports.len().saturating_sub(1)),
            None => 0,
        };
        self.selected = names().nth(next).cloned();
    }

    /// Draws all.
    pub fn draw(&self, frame: &mut Frame<'_>, program: &str, rates: &Rates) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(header(program, rates)), head);
        let selected = |port: &&PortStatus| self.zoomed && Some(&port.name) == self.selected.as_ref();
        match rates.status.ports.iter().find(selected) {
            Some(port) => port_in_full(frame, body, port, rates),
            None => self.table(frame, body, rates),
        }
        let keys = format!("q quit   ↑↓ select   enter zoom   esc back   s sort: {}", self.order.name());
        let text = self.problem.clone().unwrap_or(keys);
        frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)), foot);
    }

    fn table(&self, frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
        let ports = self.sorted(rates);
        let name = |port: &usize| &rates.status.ports[*port].name;
        let names = ports.iter().map(|port| name(port).chars().count()).max().unwrap_or_default().clamp(4, 32);
        let widths = [names as u16, 10, 5, 11, 14, 11, 14, 9];
        // With a column of space between two columns.
        let left = area.width.saturating_sub(widths.iter().sum::<u16>() + widths.len() as u16);
        let titles = ["port", "switch", "link", "rx packets", "rx bits", "tx packets", "tx bits", "drops", "history"];
        let title = |(number, title): (usize, &'static str)| match number {
            3..=7 => Cell::from(Line::from(title).right_aligned()),
            _ => Cell::from(title),
        };
        let titles = titles.into_iter().enumerate().map(title);
        let row = |port: &usize| Row::new(cells(&rates.status.ports[*port], &rates.ports[*port], rates, left.into()));
        let rows = ports.iter().map(row);
        let widths = widths.into_iter().chain([left]).map(Constraint::Length);
        let table = Table::new(rows, widths)
            .header(Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = ports.iter().position(|port| Some(name(port)) == self.selected.as_ref());
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
    }
}

fn cells(port: &PortStatus, rates: &PortRates, all: &Rates, width: usize) -> Vec<Cell<'static>> {
    let history = all.history(&port.name);
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    vec![
        Cell::from(port.name.clone()),
        Cell::from(port.switch.clone().unwrap_or_else(|| "-".into())),
        Cell::from(link(port)),
        right(pps(rates.rx_pps)),
        right(bps(rates.rx_bps)),
        right(pps(rates.tx_pps)),
        right(bps(rates.tx_bps)),
        right(grouped(rates.drops as u64)),
        // The newest ones, if there is no room for all.
        Cell::from(bars(&history[history.len().saturating_sub(width)..])),
    ]
}

/// Returns a port's link, or why it has none.
pub fn link(port: &PortStatus) -> &'static str {
    match (&port.state[..], port.link) {
        ("gone", _) => "gone",
        ("finished", _) => "ended",
        (_, true) => "up",
        (_, false) => "down",
    }
}

/// Returns a history as a bar of text, its largest value a full block.
fn bars(history: &[u64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = history.iter().copied().max().unwrap_or_default().max(1);
    let bar = |value: &u64| BARS[(*value * 8).div_ceil(most).min(8) as usize];
    history.iter().map(bar).collect()
}

/// Returns two lines on the program.
pub fn header(program: &str, rates: &Rates) -> Vec<Line<'static>> {
    let status = &rates.status;
    let seconds = status.seconds as u64;
    let stations: u64 = status.switches.iter().map(|switch| switch.stations).sum();
    let busy: Vec<_> = rates.busy.iter().map(|share| format!("{:.0} %", share * 100.0)).collect();
    let buffers = match status.buffers {
        0 => String::new(),
        all => format!("   buffers in use {} of {}", grouped(status.buffers_in_use), grouped(all)),
    };
    let time = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    vec![
        Line::from(format!(
            "{program}   {time}   {} ports   {} stations{buffers}",
            status.ports.len(),
            grouped(stations)
        )),
        Line::from(format!("workers busy: {}", busy.join("  "))),
    ]
}

/// Draws all counters of a port, with its history.
fn port_in_full(frame: &mut Frame<'_>, area: Rect, port: &PortStatus, rates: &Rates) {
    let [above, below] = Layout::vertical([Constraint::Length(6), Constraint::Min(3)]).areas(area);
    let history = rates.history(&port.name);
    let title = format!("{}: frames a second, received and sent", port.name);
    frame.render_widget(Sparkline::default().data(&history).block(Block::bordered().title(title)), above);
    let mut lines = vec![
        format!("address {}   MAC address {}   {}", port.address, port.mac, link(port)),
        port.why.clone().unwrap_or_default(),
    ];
    let stats = &port.stats;
    lines.push(format!(
        "received {} packets, {} bytes, {} lost",
        grouped(stats.rx_packets),
        grouped(stats.rx_bytes),
        grouped(stats.rx_drops)
    ));
    lines.push(format!(
        "sent     {} packets, {} bytes, {} lost",
        grouped(stats.tx_packets),
        grouped(stats.tx_bytes),
        grouped(stats.tx_drops)
    ));
    for (number, queue) in port.queues.iter().enumerate().filter(|_| port.queues.len() > 1) {
        let (received, sent) = (grouped(queue.rx_packets), grouped(queue.tx_packets));
        lines.push(format!("queue {number}: received {received}, sent {sent}"));
    }
    lines.extend(port.rings.iter().map(RingStatus::to_string));
    lines.extend(port.ends.iter().map(EndStatus::to_string));
    let counters = port.extended.iter().filter(|(_, count)| **count != 0);
    lines.extend(counters.map(|(name, count)| format!("{}: {}", name.replace('_', " "), grouped(*count))));
    lines.retain(|line| !line.is_empty());
    frame.render_widget(Paragraph::new(lines.into_iter().map(Line::from).collect::<Vec<_>>()), below);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ringpass::Stats;
    use ringpass::control::{Status, SwitchStatus, WorkerStatus};

    use super::*;

    fn rates() -> Rates {
        let port = |name: &str, packets| {
            let stats = Stats { rx_packets: packets, rx_bytes: 60 * packets, ..Stats::default() };
            let extended = [("switch_flooded".to_owned(), packets)].into();
            let switch = Some("lan".into());
            PortStatus {
                name: name.into(),
                switch,
                stats,
                extended,
                rings: vec![RingStatus { descriptors: 512, head: 5, posted: 480, ..RingStatus::default() }],
                ends: vec![EndStatus { address: "10.0.0.2".into(), networks: vec![7], stations: 12, resolved: true }],
                link: true,
                state: "running".into(),
                ..Default::default()
            }
        };
        let status = |seconds, packets| Status {
            seconds,
            ports: vec![port("tap:a", packets), port("tap:b", 3 * packets)],
            switches: vec![SwitchStatus { stations: 7, ..Default::default() }],
            workers: vec![WorkerStatus::default()],
            buffers: 8192,
            buffers_in_use: 1000,
            ..Status::default()
        };
        let mut rates = Rates::new(status(3599.0, 1_000_000));
        rates.update(status(3600.0, 2_500_000));
        rates
    }

    /// Returns the lines of the screen.
    fn screen(view: &View, rates: &Rates) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(120, 20)).expect("a screen in memory");
        terminal.draw(|frame| view.draw(frame, "ringpass run", rates)).expect("it draws");
        let buffer = terminal.backend().buffer().clone();
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        buffer.content.chunks(120).map(line).collect()
    }

    #[test]
    fn ports_are_sorted_selected_and_shown_in_full() {
        let rates = rates();
        let mut view = View { order: Order::Program, selected: None, zoomed: false, problem: None };
        let lines = screen(&view, &rates);
        assert!(lines[0].starts_with("ringpass run   1:00:00   2 ports   7 stations   buffers in use 1,000 of 8,192"));
        assert!(lines[3].starts_with("tap:a") && lines[3].contains("1.50 Mpps") && lines[3].contains("720.00 Mbit/s"));
        assert!(lines[4].starts_with("tap:b") && lines[4].contains("4.50 Mpps") && lines[4].contains('█'), "{lines:?}");
        assert!(lines[19].contains("q quit"), "{lines:?}");
        view.order = view.order.next();
        assert!(screen(&view, &rates)[3].starts_with("tap:b"), "the one that receives most");
        view.move_by(&rates, 1);
        assert_eq!(view.selected.as_deref(), Some("tap:b"));
        view.move_by(&rates, 5);
        assert_eq!(view.selected.as_deref(), Some("tap:a"));
        view.zoomed = true;
        let text = screen(&view, &rates).join("\n");
        assert!(text.contains("tap:a: frames a second") && text.contains("received 2,500,000 packets"), "{text}");
        assert!(text.contains("switch flooded: 2,500,000"), "{text}");
        assert!(text.contains("end 10.0.0.2: 12 stations, copies for all of 1 networks"), "{text}");
        assert!(text.contains("rx ring 0: 480 of 512 descriptors free, head 5"), "{text}");
        view.problem = Some("the program has ended".into());
        assert!(screen(&view, &rates)[19].contains("the program has ended"));
    }

    #[test]
    fn a_history_fits_its_largest_value() {
        assert_eq!(bars(&[0, 1, 50, 100]), " ▁▄█");
        assert_eq!(bars(&[0, 0]), "  ");
        assert_eq!(bars(&[u64::MAX >> 8]), "█");
    }
}
