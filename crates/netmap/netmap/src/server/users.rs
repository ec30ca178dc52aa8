//! The programs that have registered a port.

use ringpass_ipc::Credentials;
use rustix::io::Errno;

use super::RequestError;

/// Registrations of a port, or of an end of a pipe.
#[derive(Default)]
pub struct Users {
    /// Programs by the number of their registration.
    programs: Vec<(u64, Credentials)>,
    exclusive: bool,
}

impl Users {
    /// Adds a program, which may request exclusive use. Returns the other programs that have the port, in
    /// words; empty if there are none.
    ///
    /// # Errors
    /// `EBUSY` if another program has it exclusively, or if exclusive use was requested and another program has
    /// it.
    pub fn admit(
        &mut self,
        name: &str,
        exclusive: bool,
        (number, program): (u64, Credentials),
    ) -> Result<String, RequestError> {
        let others = self.names();
        if self.exclusive {
            return Err(RequestError::new(
                Errno::BUSY,
                format!("{name}: {others} has it exclusively; end that one first"),
            ));
        }
        if exclusive && !self.programs.is_empty() {
            return Err(RequestError::new(
                Errno::BUSY,
                format!("{name}: it was asked for exclusively, and {others} has it"),
            ));
        }
        self.programs.push((number, program));
        self.exclusive = exclusive;
        Ok(others)
    }

    /// Removes a program.
    pub fn leave(&mut self, number: u64) {
        self.programs.retain(|&(other, _)| other != number);
        self.exclusive = false;
    }

    /// Number of registrations.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Process IDs of the programs.
    pub fn pids(&self) -> Vec<i32> {
        self.programs.iter().map(|(_, program)| program.pid).collect()
    }

    /// Names of the first programs, in words.
    fn names(&self) -> String {
        const MAX_NAMES: usize = 4;
        let names: Vec<_> = self.programs.iter().take(MAX_NAMES).map(|(_, program)| program.to_string()).collect();
        let more = self.programs.len().saturating_sub(MAX_NAMES);
        names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    }
}
