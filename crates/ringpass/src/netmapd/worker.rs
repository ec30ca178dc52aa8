//! A thread that moves packets until it is to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringpass_netmap::server::Refusal;
use ringpass_port::{Idle, Wakeable};
use rustix::io::Errno;

use crate::options::Options;

/// Packets that it moves at a time, at least 256: programs that send much send it in long rows.
pub fn batch(options: &Options) -> usize {
    options.batch.max(256)
}

/// See the module. Dropped, it is told to end and waited for: a tenth of a second at most, if it sleeps.
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Begins: `round` moves what there is, and says how much. On the CPU with this number of those that the options name,
    /// counted round.
    pub fn spawn<T: Wakeable + Send + 'static>(
        name: &str,
        number: usize,
        options: &Options,
        mut what: T,
        round: fn(&mut T) -> usize,
    ) -> Result<Self, Refusal> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, poll) = (stop.clone(), options.poll);
        let cpu = options.cpu.get(number % options.cpu.len().max(1)).copied();
        let thread = std::thread::Builder::new().name(name.chars().take(15).collect());
        let thread = thread.spawn(move || {
            if let Some(id) = cpu.filter(|&id| !core_affinity::set_for_current(core_affinity::CoreId { id })) {
                errln!("a worker could not be pinned to CPU {id}");
            }
            let mut idle = Idle::new(poll);
            while !stopped.load(Ordering::Relaxed) {
                let moved = round(&mut what);
                idle.after(moved, &mut [&mut what]);
            }
        });
        let thread = thread.map_err(|error| Refusal::new(Errno::AGAIN, format!("a thread for {name}: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// It is to end, when it looks next.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            errln!("a worker has failed; see above");
        }
    }
}
