//! What a serving process leaves to its successor, so that programs do not notice a restart: their connections, memory, eventfds, and
//! what it knows of them. The descriptors wait somewhere else meanwhile, such as in the store of a service manager.
//!
//! Pipes and ports of switches go on, persistent ports included. Programs with other ports (native ones, monitors, null ports, ports in a
//! program's own memory) are disconnected, as if there were no successor. Counters and stations begin anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_ipc::Credentials;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::left::{Left, Store, broken, failed};
use super::ports::{PortsState, RegistrationState};
use super::session::Session;
use super::{RequestError, Server};

/// Number of the format below. A successor that knows another one disconnects all programs.
const FORMAT: u32 = 1;
/// Name of the file that says what the others are; it is stored last.
const STATE: &str = "state";
/// Largest state in bytes.
const MAX_STATE: u64 = 1 << 28;
/// Time that programs have for requests that they have begun.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everything but the descriptors.
#[derive(Serialize, Deserialize)]
struct State {
    format: u32,
    ports: PortsState,
    sessions: Vec<SessionState>,
}

/// A connection.
#[derive(Serialize, Deserialize)]
struct SessionState {
    socket: usize,
    registration: Option<RegistrationState>,
}

impl Server {
    /// Ends the server and leaves its programs to a successor. `put` stores a descriptor under a name; the last one makes the others
    /// usable. Returns the number of programs.
    ///
    /// Frames in the rings stay where they are; programs that wait go on waiting. Takes up to a second if programs are in the middle
    /// of a request.
    ///
    /// # Errors
    /// A descriptor could not be stored: all programs are disconnected.
    pub fn hand_over(
        mut self,
        put: &mut dyn FnMut(&str, BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<usize, RequestError> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && self.sessions.iter().any(Session::is_busy) {
            self.poll_once(Duration::from_millis(5)).map_err(failed)?;
        }
        let mut store = Store::new(put);
        let mut sessions = Vec::new();
        for session in std::mem::take(&mut self.sessions) {
            if !session.can_be_passed_on(&self.ports) {
                session.end(&mut self.ports);
                continue;
            }
            match session.into_parts() {
                (Some(socket), registration) => sessions.push((socket, registration)),
                (None, registration) => {
                    registration.into_iter().for_each(|registration| self.ports.unregister(registration));
                }
            }
        }
        let states = sessions.iter().map(|(socket, registration)| {
            let registration = registration.as_ref().map(|registration| registration.state(&mut store)).transpose()?;
            Ok(SessionState { socket: store.put(socket.as_fd())?, registration })
        });
        let states = states.collect::<Result<Vec<_>, RequestError>>()?;
        let state = State { format: FORMAT, ports: self.ports.leave(&mut store)?, sessions: states };
        let bytes = serde_json::to_vec(&state).map_err(|error| failed(error.into()))?;
        let file = memfd_create("ringpass-netmap-state", MemfdFlags::CLOEXEC);
        let mut file = File::from(file.map_err(|errno| failed(errno.into()))?);
        file.write_all(&bytes).map_err(failed)?;
        store.end(STATE, file.as_fd())?;
        Ok(sessions.len())
    }

    /// Goes on with the programs of another server, with the descriptors that it [has left](Self::hand_over), by their names. To be called
    /// before the first port is served or opened. Returns the number of programs; 0 if nothing was left.
    ///
    /// # Errors
    /// What was left is incomplete or of another version: all its programs are disconnected, and this server has none.
    pub fn take_over(&mut self, left: Vec<(String, OwnedFd)>) -> Result<usize, RequestError> {
        let mut state = None;
        let mut files = BTreeMap::new();
        for (name, fd) in left {
            match name.parse() {
                Ok(number) => _ = files.insert(number, fd),
                Err(_) if name == STATE => state = Some(File::from(fd)),
                Err(_) => {}
            }
        }
        let Some(mut file) = state else {
            return if files.is_empty() { Ok(0) } else { Err(broken("it is incomplete")) };
        };
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.take(MAX_STATE).read_to_end(&mut bytes)).map_err(broken)?;
        let State { format, ports, sessions } = serde_json::from_slice(&bytes).map_err(broken)?;
        if format != FORMAT {
            return Err(broken(format!("it has format {format}, and this version knows {FORMAT}")));
        }
        let mut left = Left::new(files);
        let mut registrations = Vec::new();
        let mut connected = Vec::new();
        for SessionState { socket, registration } in sessions {
            let socket = left.take(socket)?;
            let program = Credentials::of_peer(&socket).map_err(broken)?;
            let registration = registration.map(|state| state.resume(&mut left)).transpose()?;
            registrations.extend(registration.as_ref().map(|registration| (registration.clone(), program)));
            connected.push(Session::resume(socket, program, registration));
        }
        self.ports.resume(ports, &mut left, &registrations)?;
        // Programs that have ended meanwhile are found to have hung up.
        self.sessions = connected;
        Ok(self.sessions.len())
    }
}
