//! Answers to those who ask over a control socket.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringpass::control::{CardsState, PortStatus, Request, Status, StepOrder, WorkerStatus};
use ringpass::{Config, Mempool, Port, State, Workers};
use serde_json::{Value, json};

use crate::run_observer::{PortPlace, RunObserver};
use crate::{log, metrics};

/// What moves packets in a run.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// Its workers.
    pub workers: &'a Workers,
    /// Pool of its packets.
    pub pool: &'a Mempool,
}

/// Answers a request.
///
/// # Errors
/// Why not, in a line.
pub fn answer(
    request: &Request,
    ports: &mut [Box<dyn Port>],
    observer: &dyn RunObserver,
    engine: Engine<'_>,
    elapsed: Duration,
) -> Result<Value, String> {
    match request {
        Request::Status => {
            let status = status(ports, observer, engine, elapsed);
            serde_json::to_value(status).map_err(|error| error.to_string())
        }
        Request::Metrics { format } => {
            metrics::encode(status(ports, observer, engine, elapsed), *format).map(Value::from)
        }
        Request::Stations { switch } => observer.stations(switch.as_deref()).map(Value::from),
        Request::Plan => observer.plan(),
        Request::Step { order } => step(observer, *order),
        // The server's own, and those that change the run.
        Request::Events
        | Request::Add { .. }
        | Request::Set { .. }
        | Request::Remove { .. }
        | Request::Capture { .. } => Ok(json!({})),
    }
}

/// Stops, steps or starts the software cards.
fn step(observer: &dyn RunObserver, order: StepOrder) -> Result<Value, String> {
    let none = "this program has no software cards of its own; those of 'model:' ports and of the demo can be stopped";
    let stepper = observer.stepper().ok_or(none)?;
    let step = match order {
        StepOrder::Step => stepper.step()?,
        StepOrder::Stop | StepOrder::Run => {
            stepper.stop(order == StepOrder::Stop);
            None
        }
    };
    let steps: Vec<_> = step.into_iter().collect();
    Ok(json!({ "cards": cards(observer), "steps": steps }))
}

/// Returns the state of the software cards.
fn cards(observer: &dyn RunObserver) -> Option<CardsState> {
    let is_stopped = observer.stepper()?.is_stopped()?;
    Some(if is_stopped { CardsState::Stopped } else { CardsState::Running })
}

/// Returns the event of a change.
pub fn event(request: &Request) -> Value {
    match request {
        Request::Remove { port } => json!({ "event": "removed", "port": port }),
        Request::Capture { port, .. } => json!({ "event": "capture", "port": port }),
        Request::Set { port, .. } => json!({ "event": "set", "port": port }),
        Request::Add { switch, port } => {
            let name = port.get("name").or_else(|| port.get("address"));
            json!({ "event": "added", "port": name, "switch": switch })
        }
        _ => json!({ "event": "changed" }),
    }
}

/// Returns the status of a run.
pub fn status(
    ports: &mut [Box<dyn Port>],
    observer: &dyn RunObserver,
    engine: Engine<'_>,
    elapsed: Duration,
) -> Status {
    let present = ports.iter_mut().enumerate().filter(|(number, _)| observer.is_present(*number));
    let ports = present.map(|(number, port)| {
        let mut status = PortStatus::of(&mut **port);
        if let Some(PortPlace { name, switch }) = observer.place(number) {
            (status.name, status.switch) = (name.to_owned(), Some(switch.to_owned()));
        }
        let more = observer.extended(number).into_iter().map(|(name, count)| (name.to_owned(), count));
        status.extended.extend(more);
        status.ends = observer.ends(number);
        status
    });
    let worker = |totals: &ringpass::Totals| {
        let ringpass::Totals { moved, dropped, busy_cycles, rounds, sleeps, .. } = *totals;
        WorkerStatus { moved, dropped, busy_cycles, rounds: rounds.to_vec(), sleeps }
    };
    Status {
        seconds: elapsed.as_secs_f64(),
        queues: engine.config.port.queues,
        mtu: engine.config.port.mtu,
        offloads: engine.config.port.offloads.to_string(),
        room: observer.room(),
        ports: ports.collect(),
        switches: observer.switches(),
        workers: engine.workers.totals_of_each(elapsed).iter().map(worker).collect(),
        buffers: engine.pool.capacity() as u64,
        // Two handles are those of the ports and of the run.
        buffers_in_use: engine.pool.outstanding(2) as u64,
        cards: cards(observer),
    }
}

/// What was seen last of a run, for events on what has changed.
#[derive(Default)]
pub struct Watch {
    /// Link of each port, and whether the port is gone.
    ports: Vec<(bool, bool)>,
    /// Stations, by switch, VLAN and address, with their ports.
    stations: Option<BTreeMap<String, String>>,
    looked: Option<Instant>,
}

impl Watch {
    /// Interval at which stations are looked at.
    const STATIONS: Duration = Duration::from_secs(1);
    /// Most stations of which it is told that they were learnt.
    const MOST: usize = 20_000;

    /// Returns events on what has changed since the last call.
    pub fn changes(&mut self, ports: &mut [Box<dyn Port>], observer: &dyn RunObserver) -> Vec<Value> {
        let mut events = log::taken();
        let mut now = Vec::new();
        for (number, port) in ports.iter_mut().enumerate() {
            let why = match port.state() {
                State::Gone(why) => Some(why),
                State::Running | State::Finished => None,
            };
            let up = why.is_none() && port.link().up;
            let name = || observer.place(number).map_or(port.name(), |place| place.name).to_owned();
            if let Some(&(was_up, was_gone)) = self.ports.get(number)
                && observer.is_present(number)
            {
                if up != was_up {
                    events.push(json!({ "event": "link", "port": name(), "up": up }));
                }
                if !was_gone && let Some(why) = &why {
                    events.push(json!({ "event": "gone", "port": name(), "why": why }));
                }
            }
            now.push((up, why.is_some()));
        }
        self.ports = now;
        if self.looked.is_none_or(|looked| looked.elapsed() >= Self::STATIONS) {
            self.looked = Some(Instant::now());
            events.extend(self.learnt(observer));
        }
        events
    }

    fn learnt(&mut self, observer: &dyn RunObserver) -> Vec<Value> {
        let count: u64 = observer.switches().iter().map(|switch| switch.stations).sum();
        if count > Self::MOST as u64 {
            self.stations = None;
            return Vec::new();
        }
        let stations = observer.stations(None).unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut events = Vec::new();
        for station in stations {
            let key = format!("{}/{}/{}", station["switch"], station["vlan"], station["mac"]);
            let port = station["port"].as_str().unwrap_or_default().to_owned();
            if self.stations.as_ref().is_some_and(|before| before.get(&key) != Some(&port)) {
                let mut event = json!({ "event": "learnt" });
                ["mac", "vlan", "port", "switch"].iter().for_each(|key| event[*key] = station[*key].clone());
                events.push(event);
            }
            now.insert(key, port);
        }
        self.stations = Some(now);
        events
    }
}
