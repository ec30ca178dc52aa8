//! The subcommand `ringpass top`: ports, rates and workers of a running program, live.

mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ringpass::Error;
use ringpass::control::Client;
use ringpass::signals::interrupted;
use signal_hook::consts::SIGHUP;
use signal_hook::flag;

use crate::options::seconds;
use crate::output::print_line;
use crate::signals::{begin_run, catch_first_signal};
use crate::stats::{bps, grouped, pps};
use rates::Rates;
use ringpass::control::DEFAULT_SOCKET;
use view::{Order, View, header, link};

/// Show ports, rates and workers of a running program, live
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Control socket of the program, as in its --control or its file
    #[arg(long, value_name = "PATH", env = "RINGPASS_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print the rates of one interval as text, and end; so it is, too, if the output is no terminal
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  of the service:
      ringpass top
  of a program that was started with '--control /run/fwd':
      ringpass top --socket /run/fwd
  into a file:
      ringpass top --once >rates.txt

KEYS: q quit, up and down select a port, enter shows all of it, esc goes back, s sorts";

/// SIGHUP ends the program at once.
static ENDS_WITH_TERMINAL: AtomicBool = AtomicBool::new(true);

/// Time after which keys and signals are noticed.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut client = Client::connect(&args.socket)?;
    let program = client.greeting().program.clone();
    let mut rates = Rates::new(client.status()?);
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        std::thread::sleep(args.interval);
        rates.update(client.status()?);
        print(&program, &rates);
        return Ok(());
    }
    catch_first_signal()?;
    begin_run();
    // Without its terminal there is nothing to restore, and the library that reads keys would read its end again and again.
    let registered = flag::register_conditional_shutdown(SIGHUP, 129, &ENDS_WITH_TERMINAL);
    registered.map_err(|source| Error::os("taking SIGHUP", source))?;
    let mut screen = Screen::enter()?;
    screen.show(&mut client, &program, rates, args.interval)
}

/// Prints rates as text.
fn print(program: &str, rates: &Rates) {
    header(program, rates).iter().for_each(|line| print_line(&line.to_string()));
    let names = rates.status.ports.iter().map(|port| port.name.chars().count()).max().unwrap_or_default().max(4);
    for (port, of_port) in rates.status.ports.iter().zip(&rates.ports) {
        let side = |packets, bits| format!("{:>10} {:>12}", pps(packets), bps(bits));
        let rx = side(of_port.rx_pps, of_port.rx_bps);
        let tx = side(of_port.tx_pps, of_port.tx_bps);
        let drops = grouped(of_port.drops as u64);
        print_line(&format!("{:<names$}  {:<5}  rx {rx}  tx {tx}  drops {drops}", port.name, link(port)));
    }
}

/// The terminal, which is as it was before when this is dropped.
struct Screen(ratatui::DefaultTerminal);

impl Screen {
    fn enter() -> Result<Self, Error> {
        ratatui::try_init().map(Self).map_err(|source| Error::os("the terminal", source))
    }

    /// Shows a program until the user has seen enough.
    fn show(&mut self, client: &mut Client, program: &str, mut rates: Rates, interval: Duration) -> Result<(), Error> {
        let failed = |source| Error::os("the terminal", source);
        let mut view = View { order: Order::Program, selected: None, zoomed: false, problem: None };
        let mut next = Instant::now() + interval;
        while !interrupted() {
            self.0.draw(|frame| view.draw(frame, program, &rates)).map_err(failed)?;
            let left = next.saturating_duration_since(Instant::now());
            // A signal ends this with an error of its own.
            let arrived = event::poll(left.min(LOOK)).unwrap_or(false);
            if arrived
                && let Event::Key(key) = event::read().map_err(failed)?
                && !apply(key, &mut view, &rates)
            {
                return Ok(());
            }
            if view.problem.is_none() && Instant::now() >= next {
                next = Instant::now() + interval;
                match client.status() {
                    Ok(status) => rates.update(status),
                    Err(error) => view.problem = Some(format!("{error} (q quits)")),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Does what a key asks for; returns whether the program goes on.
fn apply(key: KeyEvent, view: &mut View, rates: &Rates) -> bool {
    if key.kind != KeyEventKind::Press {
        return true;
    }
    match key.code {
        KeyCode::Char('q') => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('s') => view.order = view.order.next(),
        KeyCode::Up | KeyCode::Char('k') => view.move_by(rates, -1),
        KeyCode::Down | KeyCode::Char('j') => view.move_by(rates, 1),
        KeyCode::Enter if view.selected.is_some() => view.zoomed = true,
        KeyCode::Enter => view.move_by(rates, 0),
        KeyCode::Esc => view.zoomed = false,
        _ => {}
    }
    true
}
