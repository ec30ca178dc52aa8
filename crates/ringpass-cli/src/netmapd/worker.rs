//! Threads of switches and of ports in netmap mode.

use ringpass::{Config, Error, Wakeable, Workers};
use ringpass_netmap::server::RequestError;
use rustix::io::Errno;

/// Returns the largest number of packets moved at a time: at least 256, because programs send in long runs.
pub fn batch(config: &Config) -> usize {
    config.batch.max(256)
}

/// Starts a thread that calls `round` again and again, which moves packets and returns how many. It runs on the CPU `number`, modulo
/// their count, of the CPUs in the config, and ends when the result is dropped.
pub fn spawn<T: Wakeable + Send + 'static>(
    name: &str,
    number: usize,
    config: &Config,
    mut what: T,
    round: fn(&mut T) -> usize,
) -> Result<Workers, RequestError> {
    let failed = |error: Error| RequestError::new(Errno::AGAIN, error);
    let cpu = config.cpu.get(number % config.cpu.len().max(1)).copied().into_iter().collect();
    let mut workers = Workers::new(&Config { cpu, count: None, ..config.clone() }).map_err(failed)?;
    let run = workers.spawn(name, move |mut worker| {
        while worker.running() {
            let moved = round(&mut what);
            worker.after(moved, &mut [&mut what]);
        }
    });
    run.map_err(failed)?;
    Ok(workers)
}
