//! Control of a running program.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringpass::control::{Client, DEFAULT_SOCKET, Request};
use serde_json::Value;

use crate::error::{InvalidError, exception};

/// A connection to a running program, such as `ringpass run`, over its control socket.
#[pyclass(module = "ringpass", frozen)]
pub struct Control {
    client: Mutex<Client>,
    /// What runs, such as "ringpass run".
    #[pyo3(get)]
    program: String,
    /// Whether this connection may change anything.
    #[pyo3(get)]
    changes: bool,
}

/// Returns a value of the protocol as Python's own.
fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (value.to_string(),))?.unbind())
}

impl Control {
    /// Does something that may wait.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&mut Client) -> Result<T, ringpass::Error> + Send,
    ) -> PyResult<T> {
        py.detach(|| ask(&mut self.client.lock().unwrap_or_else(PoisonError::into_inner))).map_err(exception)
    }

    fn ask(&self, py: Python<'_>, request: &Request) -> PyResult<Py<PyAny>> {
        let answer = self.with(py, |client| client.request(request))?;
        to_python(py, &answer)
    }
}

#[pymethods]
impl Control {
    /// Connect to the program at a socket.
    #[new]
    #[pyo3(signature = (socket = PathBuf::from(DEFAULT_SOCKET)))]
    fn new(py: Python<'_>, socket: PathBuf) -> PyResult<Self> {
        let client = py.detach(|| Client::connect(&socket)).map_err(exception)?;
        let (program, changes) = (client.greeting().program.clone(), client.greeting().changes);
        Ok(Self { client: Mutex::new(client), program, changes })
    }

    /// Return state and counters of ports, switches and workers.
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.ask(py, &Request::Status)
    }

    /// Return the stations of a switch, or of all.
    #[pyo3(signature = (switch = None))]
    fn stations(&self, py: Python<'_>, switch: Option<String>) -> PyResult<Py<PyAny>> {
        self.ask(py, &Request::Stations { switch })
    }

    /// Open a port and add it to a switch.
    #[pyo3(signature = (switch, address, **keys))]
    fn add(&self, py: Python<'_>, switch: &str, address: &str, keys: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let text: String = match keys {
            Some(keys) => py.import("json")?.call_method1("dumps", (keys,))?.extract()?,
            None => "{}".into(),
        };
        let mut port: Value = serde_json::from_str(&text).map_err(|error| InvalidError::new_err(error.to_string()))?;
        port["address"] = address.into();
        self.with(py, |client| client.add(switch, port))
    }

    /// Take a port out of its switch and close it.
    fn remove(&self, py: Python<'_>, port: String) -> PyResult<()> {
        self.with(py, |client| client.request(&Request::Remove { port }).map(drop))
    }

    /// Ask for events from now on, which `event` returns.
    fn listen(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |client| client.request(&Request::Events).map(drop))
    }

    /// Return the next event, or None if there is none within `wait` seconds.
    #[pyo3(signature = (wait = 0.0))]
    fn event(&self, py: Python<'_>, wait: f64) -> PyResult<Option<Py<PyAny>>> {
        /// Time after which Python looks for signals.
        const SLICE: Duration = Duration::from_millis(100);
        let limit = Duration::try_from_secs_f64(wait)
            .map_err(|_| InvalidError::new_err("wait: write a number of seconds, 0 or more"))?;
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            if let Some(event) = self.with(py, |client| client.event(left.min(SLICE)))? {
                return to_python(py, &event).map(Some);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn __repr__(&self) -> String {
        format!("<ringpass.Control of {}>", self.program)
    }
}
