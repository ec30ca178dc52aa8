//! Start and end of the loop that synchronises a port's rings.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringpass_ipc::EventNotifier;
use rustix::io::Errno;

use crate::refusal::Refusal;

/// State of a port's loop.
#[derive(Default)]
pub struct LoopControl {
    /// Wakes the loop, if one runs.
    running: Mutex<Option<EventNotifier>>,
    ended: Condvar,
    /// Set if the loop is to end; changed with `running` locked.
    stop: AtomicBool,
}

/// Time within which a loop ends once it is to: much more than it needs.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

impl LoopControl {
    fn running(&self) -> MutexGuard<'_, Option<EventNotifier>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a loop runs.
    pub fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Ends the loop, and waits until it has ended. As in netmap, a loop that is started later ends at once if there is none now.
    pub fn stop(&self) -> Result<(), Refusal> {
        let running = self.running();
        self.stop.store(true, Relaxed);
        running.iter().for_each(EventNotifier::notify);
        let is_running = |running: &mut Option<EventNotifier>| running.is_some();
        let (running, _) =
            self.ended.wait_timeout_while(running, STOP_TIMEOUT, is_running).unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(_) => Err(Refusal::new(Errno::TIMEDOUT, "the loop does not end")),
            None => Ok(()),
        }
    }

    /// Returns whether the loop is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Begins a loop, which ends when the result is dropped; [`stop`](Self::stop) signals `wake`.
    pub fn begin(&self, wake: EventNotifier) -> Result<Running<'_>, Refusal> {
        let mut running = self.running();
        if running.is_some() {
            return Err(Refusal::new(Errno::BUSY, "a loop runs already"));
        }
        *running = Some(wake);
        Ok(Running(self))
    }
}

/// A loop that runs. When it is dropped, the loop has ended.
pub struct Running<'a>(&'a LoopControl);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut running = self.0.running();
        *running = None;
        self.0.stop.store(false, Relaxed);
        self.0.ended.notify_all();
    }
}
