//! Captures: a decorator that writes all traffic of a port to a file, and captures of ports that are in use.
//!
//! Each direction of each queue copies its packets into a bounded ring, and a thread drains the rings into the
//! file. If the thread falls behind, packets are not copied but counted as lost; the traffic does not wait for
//! it.

mod cells;
mod copier;
mod drain;
mod live;

use std::path::Path;
use std::thread::JoinHandle;

use ringpass_port::{Error, Port, PortDecorator, QueuePair, State};

use crate::capture_file::{Direction, Writer};
use copier::{Copies, Rx, Tx};
use drain::start_draining;
pub use live::LiveCapture;

/// The port `capture,file=FILE:PORT`.
pub struct Capture {
    name: String,
    file: String,
    inner: Box<dyn Port>,
    /// The file's writer, until the queues are taken.
    writer: Option<Writer>,
    /// What is copied, once the queues are taken.
    copies: Option<Copies>,
    thread: Option<JoinHandle<()>>,
    /// Why the capture could not be started.
    failed: Option<String>,
    /// Whether `finish` has reported lost packets.
    finished: bool,
}

impl Capture {
    /// Creates the file and wraps a port whose queues have not been taken yet.
    pub fn wrap(inner: Box<dyn Port>, file: &Path) -> Result<Self, Error> {
        let name = format!("capture:{}", inner.name());
        Ok(Self {
            name,
            file: file.display().to_string(),
            inner,
            writer: Some(Writer::create(file)?),
            copies: None,
            thread: None,
            failed: None,
            finished: false,
        })
    }

    /// Wraps the queues, and starts the thread that writes the file.
    fn start(&mut self, writer: Writer, queues: Vec<QueuePair>) -> Result<Vec<QueuePair>, Error> {
        let copies = Copies::new(Vec::new());
        let wrap = |QueuePair { rx, tx }| QueuePair {
            rx: Box::new(Rx::new(rx, copies.copier(Direction::Received))),
            tx: Box::new(Tx::new(tx, copies.copier(Direction::Sent))),
        };
        let queues = queues.into_iter().map(wrap).collect();
        self.thread = Some(start_draining(writer, &copies)?);
        self.copies = Some(copies);
        Ok(queues)
    }

    /// Returns how many packets have passed but are not in the file, because writing was too slow or failed.
    pub fn lost(&self) -> u64 {
        self.copies.as_ref().map_or(0, Copies::lost)
    }
}

impl PortDecorator for Capture {
    fn inner(&self) -> &dyn Port {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Port {
        &mut *self.inner
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn state(&mut self) -> State {
        self.failed.clone().map_or_else(|| self.inner.state(), State::Gone)
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        let queues = self.inner.take_queues();
        let Some(writer) = self.writer.take() else { return queues };
        self.start(writer, queues).unwrap_or_else(|error| {
            self.failed = Some(format!("{}: {error}", self.name));
            Vec::new()
        })
    }

    /// Finishes the file. Packets missing from it are an error, because its readers take it as complete.
    fn finish(&mut self) -> Result<(), Error> {
        self.end();
        self.finished = true;
        let inner = self.inner.finish();
        match self.lost() {
            0 => inner,
            lost => Err(Error::Fault(format!(
                "{}: {lost} packets are not in {}, because writing was too slow or failed",
                self.name, self.file
            ))),
        }
    }

    fn notes(&self) -> Vec<String> {
        let lost = match self.lost() {
            0 => String::new(),
            lost => format!("; {lost} packets are not in it, because writing was too slow or failed"),
        };
        let own = format!("what passes is copied and written to {}{lost}", self.file);
        self.inner.notes().into_iter().chain([own]).collect()
    }
}

impl Capture {
    /// Writes the remaining packets and finishes the file.
    fn end(&mut self) {
        self.copies.iter().for_each(Copies::stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
        if self.lost() > 0 && !self.finished {
            tracing::warn!("{}: {} packets are not in {}", self.name, self.lost(), self.file);
        }
    }
}
