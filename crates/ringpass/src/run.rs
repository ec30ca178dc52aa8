//! The run of an application: the main thread supervises workers and ports until there is a reason to end.

use std::time::{Duration, Instant};

use ringpass_port::{Error, Port};

use crate::ports::{Ports, check_ports};
use crate::signals;
use crate::worker::{Totals, Workers};

impl Workers {
    /// Interval at which a run is looked at.
    pub const TICK: Duration = Duration::from_millis(50);
    /// Number of consecutive looks without any moved packet after which, once an input has ended, nothing is in flight. Counted
    /// in looks and not in time, because on a busy machine all threads may stall, this one too.
    const IDLE_TICKS: u32 = 6;

    /// Runs until Ctrl-C, or until [`run_until`](Self::run_until) ends for another reason, and closes the ports. Signals are
    /// [caught](signals::catch) from here on.
    ///
    /// ```
    /// use ringpass::{Burst, Config, Workers};
    ///
    /// let config = Config { time: Some(std::time::Duration::from_millis(200)), ..Config::default() };
    /// let mut ports = ringpass::open(["model:null", "null"], &config)?;
    /// let [mut a, mut b] = ports.take_pair()?;
    /// let mut workers = Workers::new(&config)?;
    /// workers.spawn("forward", move |mut worker| {
    ///     let mut burst = Burst::new(worker.batch);
    ///     while worker.running() {
    ///         let received = a.rx.rx_burst(&mut burst);
    ///         b.tx.tx_burst(&mut burst);
    ///         burst.clear();
    ///         worker.after(received, &mut [&mut *a.rx]);
    ///     }
    ///     Ok(())
    /// })?;
    /// let totals = workers.run(ports)?;
    /// assert!(totals.elapsed >= config.time.expect("set above"));
    /// # Ok::<(), ringpass::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`run_until`](Self::run_until) and of [`Ports::close`]. The ports are closed even so.
    pub fn run(&mut self, mut ports: Ports) -> Result<Totals, Error> {
        signals::catch()?;
        let ended = self.run_until(&mut ports, signals::interrupted, |_, _| Ok(()));
        // Cards stop once their queues, which the workers had, and their port are gone.
        let closed = ports.close();
        ended.and_then(|totals| closed.map(|()| totals))
    }

    /// Supervises workers and ports until the run ends, then stops the workers and waits for them. It ends when `stop` returns
    /// `true`, after the time or the packets of the configuration, when all workers have ended, or when an input (a capture file)
    /// has ended and no packet was moved for a while. Calls `on_tick` every [`TICK`](Self::TICK).
    ///
    /// ```
    /// use ringpass::{Burst, Config, Workers, signals};
    ///
    /// let config = Config { time: Some(std::time::Duration::from_millis(200)), ..Config::default() };
    /// let mut ports = ringpass::open(["model:null", "null"], &config)?;
    /// let [mut a, mut b] = ports.take_pair()?;
    /// let mut workers = Workers::new(&config)?;
    /// workers.spawn("forward", move |mut worker| {
    ///     let mut burst = Burst::new(worker.batch);
    ///     while worker.running() {
    ///         let received = a.rx.rx_burst(&mut burst);
    ///         b.tx.tx_burst(&mut burst);
    ///         burst.clear();
    ///         worker.after(received, &mut [&mut *a.rx]);
    ///     }
    ///     Ok(())
    /// })?;
    /// signals::catch()?;
    /// let totals = workers.run_until(&mut ports, signals::interrupted, |totals, ports| {
    ///     println!("{} packets moved, {:?}", totals.moved, ports[0].stats());
    ///     Ok(())
    /// })?;
    /// assert!(totals.elapsed >= config.time.expect("set above"));
    /// # Ok::<(), ringpass::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device, interface or peer behind a port is gone, a worker has failed, or `on_tick` has.
    pub fn run_until(
        &mut self,
        ports: &mut [Box<dyn Port>],
        stop: impl FnMut() -> bool,
        mut on_tick: impl FnMut(&Totals, &mut [Box<dyn Port>]) -> Result<(), Error>,
    ) -> Result<Totals, Error> {
        let start = Instant::now();
        let ended = self.supervise(stop, |totals| {
            on_tick(totals, ports)?;
            check_ports(ports)
        });
        self.stop();
        let elapsed = start.elapsed();
        let joined = self.join();
        ended.and(joined)?;
        Ok(self.totals(elapsed))
    }

    /// Waits as [`run_until`](Self::run_until) does, for those who check the ports themselves and end the workers in their own
    /// way: `on_tick` returns whether an input has ended.
    ///
    /// # Errors
    /// Those of `on_tick`, which end the wait.
    pub fn supervise(
        &self,
        stop: impl FnMut() -> bool,
        on_tick: impl FnMut(&Totals) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.supervise_and(stop, on_tick, std::thread::sleep)
    }

    /// Waits as [`supervise`](Self::supervise) does, for those who have something to do between two looks: `pause` returns after the time that it is
    /// given.
    ///
    /// # Errors
    /// Those of `on_tick`, which end the wait.
    pub fn supervise_and(
        &self,
        mut stop: impl FnMut() -> bool,
        mut on_tick: impl FnMut(&Totals) -> Result<bool, Error>,
        mut pause: impl FnMut(Duration),
    ) -> Result<(), Error> {
        let start = Instant::now();
        let (mut moved, mut quiet) = (0, 0);
        loop {
            let elapsed = start.elapsed();
            let left = self.time().map_or(Self::TICK, |time| time.saturating_sub(elapsed));
            if left.is_zero() || stop() || self.finished() {
                return Ok(());
            }
            let totals = self.totals(elapsed);
            quiet = if totals.moved == moved { quiet + 1 } else { 0 };
            moved = totals.moved;
            let input_has_ended = on_tick(&totals)?;
            if input_has_ended && quiet > Self::IDLE_TICKS {
                return Ok(());
            }
            pause(left.min(Self::TICK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_run_ends_for_each_reason() {
        let none: &mut [Box<dyn Port>] = &mut [];
        let workers = |config: &Config| {
            let mut workers = Workers::new(config).unwrap();
            workers.spawn("worker", |mut worker| {
                while worker.running() {
                    worker.after(1, &mut []);
                }
                Ok(())
            })?;
            Ok::<_, Error>(workers)
        };
        let config = Config::default();
        let mut calls = 0;
        let stop = || {
            calls += 1;
            calls > 2
        };
        assert!(workers(&config).unwrap().run_until(none, stop, |_, _| Ok(())).unwrap().moved > 0);
        let time = Duration::from_millis(80);
        let timed = Config { time: Some(time), ..Config::default() };
        assert!(workers(&timed).unwrap().run_until(none, || false, |_, _| Ok(())).unwrap().elapsed >= time);
        let counted = Config { count: Some(5), ..Config::default() };
        assert_eq!(workers(&counted).unwrap().run_until(none, || false, |_, _| Ok(())).unwrap().moved, 5);
        let fails = |_: &Totals, _: &mut [Box<dyn Port>]| Err(Error::Fault("a tick".into()));
        let error = workers(&config).unwrap().run_until(none, || false, fails).err();
        assert_eq!(error.map(|error| error.to_string()), Some("a tick".into()));
    }

    #[test]
    fn a_worker_that_fails_ends_the_others_and_its_error_is_returned() {
        let mut workers = Workers::new(&Config::default()).unwrap();
        workers
            .spawn("waits", |mut worker| {
                while worker.running() {
                    worker.after(0, &mut []);
                }
                Ok(())
            })
            .unwrap();
        workers.spawn("fails", |_| Err(Error::Fault("out of addresses".into()))).unwrap();
        let error = workers.run_until(&mut [], || false, |_, _| Ok(())).err();
        assert_eq!(error.map(|error| error.to_string()), Some("out of addresses".into()));
    }
}
