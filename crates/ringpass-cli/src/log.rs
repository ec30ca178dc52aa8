//! The log: to standard error, as text or JSON, or to systemd's journal; and what was logged last, as events of a control socket.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, warn};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::output::{LIVE_LINES, LogForm, Verbosity, is_quiet, is_verbose, set_verbosity};

/// Sets how much is printed, and starts the log.
pub fn start(verbosity: Verbosity) {
    set_verbosity(verbosity);
    // Warnings include why a guest has lost its session; that guests and back-ends come and go is information.
    let directives = match (is_quiet(), is_verbose()) {
        (true, _) => "warn",
        (_, true) => "info",
        _ => "warn,ringpass_vhost_user=info,ringpass_virtio_user=info,ringpass_cli::service::reload=info",
    };
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(chosen) if !chosen.is_empty() => EnvFilter::new(chosen),
        _ => EnvFilter::new(directives),
    };
    let journal = match verbosity.log {
        Some(LogForm::Journal) => Journal::connect(),
        None if is_journal() => Journal::connect(),
        _ => None,
    };
    // Internal errors of the logger mean that standard error is gone. It would report them there, and panic.
    let lines = || tracing_subscriber::fmt::layer().with_writer(|| LogWriter).log_internal_errors(false);
    let form: Box<dyn Layer<Registry> + Send + Sync> = match (journal, verbosity.log) {
        (Some(journal), _) => journal.boxed(),
        (None, Some(LogForm::Json)) => lines().json().flatten_event(true).boxed(),
        (None, _) if is_verbose() => lines().boxed(),
        (None, _) => lines().without_time().with_target(false).boxed(),
    };
    tracing_subscriber::registry().with(form).with(LogEvents).with(RateLimit).with(filter).init();
}

/// Returns whether standard error is a stream to systemd's journal (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = rustix::fs::fstat(io::stderr().as_fd());
    own.is_ok_and(|own| stream == format!("{}:{}", own.st_dev, own.st_ino))
}

/// Entries of systemd's journal in its own protocol (systemd, "Native Journal Protocol"). The socket is connected before the sandbox is entered, and does not
/// block, as that of the crate `tracing-journald` would: a worker may log.
struct Journal(UnixDatagram);

impl Journal {
    fn connect() -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect("/run/systemd/journal/socket").ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let (message, target) = (message(event), event.metadata().target());
        let fields = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=ringpass\nTARGET={target}\nMESSAGE\n");
        // A value that may have several lines has its length in front.
        let entry = [fields.as_bytes(), &(message.len() as u64).to_le_bytes(), message.as_bytes(), b"\n"].concat();
        // A journal that is full or gone is no reason to end.
        let _ = self.0.send(&entry);
    }
}

/// Returns an event's text.
fn message(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0
}

/// What was logged last, for those who ask for events.
static LOGGED: Mutex<VecDeque<Value>> = Mutex::new(VecDeque::new());

/// Keeps what is logged, as far as there is room.
struct LogEvents;

impl<S: Subscriber> Layer<S> for LogEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        /// Most that waits to be taken.
        const ROOM: usize = 256;
        let level = event.metadata().level().as_str().to_lowercase();
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() == ROOM {
            logged.pop_front();
        }
        logged.push_back(json!({ "event": "log", "level": level, "message": message(event) }));
    }
}

/// Takes what was logged since the last call, the last few hundred lines at most, as events.
pub fn taken() -> Vec<Value> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
}

/// Lines of one place in the program that are logged in a [`WINDOW`]; the others are counted.
const LINES: u64 = 10;
const WINDOW: Duration = Duration::from_secs(1);
/// Target of the lines that tell how many others there were, which are not counted themselves.
const COUNTS: &str = "ringpass_cli::log::counts";

/// Lines of each place in the program.
static PLACES: Mutex<Option<HashMap<Identifier, Place>>> = Mutex::new(None);

struct Place {
    name: &'static str,
    since: Instant,
    lines: u64,
}

/// Keeps what comes again and again from filling the log.
struct RateLimit;

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == COUNTS {
            return true;
        }
        let (allowed, missing) = count(metadata);
        if let Some((name, lines)) = missing {
            tell(name, lines);
        }
        allowed
    }
}

/// Counts a line. Returns whether it is logged, and how many were not in the window before.
fn count(metadata: &'static Metadata<'static>) -> (bool, Option<(&'static str, u64)>) {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let places = places.get_or_insert_default();
    let new = Place { name: metadata.target(), since: Instant::now(), lines: 0 };
    let place = places.entry(metadata.callsite()).or_insert(new);
    let missing = place.end_window();
    place.lines += 1;
    (place.lines <= LINES, missing)
}

impl Place {
    /// Begins a new window if the last one is over; returns how many lines were missing in that.
    fn end_window(&mut self) -> Option<(&'static str, u64)> {
        if self.since.elapsed() < WINDOW {
            return None;
        }
        let missing = self.lines.saturating_sub(LINES);
        (self.since, self.lines) = (Instant::now(), 0);
        (missing > 0).then_some((self.name, missing))
    }
}

fn tell(name: &str, lines: u64) {
    warn!(target: COUNTS, "{lines} more lines of {name} like those before");
}

/// Tells how many lines were not logged, where that is not known yet. To be called from time to time.
pub fn tell_missing() {
    let missing: Vec<_> = {
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter_mut().flat_map(HashMap::values_mut).filter_map(Place::end_window).collect()
    };
    missing.into_iter().for_each(|(name, lines)| tell(name, lines));
}

/// Writes the log to standard error.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        LIVE_LINES.store(0, Ordering::Relaxed);
        io::stderr().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_what_is_rare_is_not() {
        tracing_subscriber::registry().with(LogEvents).with(RateLimit).init();
        for number in 0..1000 {
            warn!("a flood, {number}");
        }
        warn!("something else");
        std::thread::sleep(WINDOW + Duration::from_millis(100));
        tell_missing();
        warn!("after all");
        let lines: Vec<_> =
            taken().iter().map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect();
        let expected: Vec<_> = (0..LINES).map(|number| format!("a flood, {number}")).collect();
        assert_eq!(lines[..10], expected);
        assert_eq!(lines[10], "something else");
        assert!(lines[11].starts_with("990 more lines of ringpass_cli::log") && lines[12] == "after all", "{lines:?}");
        assert_eq!(lines.len(), 13);
        tell_missing();
        assert!(taken().is_empty());
    }
}
