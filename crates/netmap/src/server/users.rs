//! Who has registered a port.

use ringpass_peer::Credentials;
use rustix::io::Errno;

use super::Refusal;

/// The registrations of a port, or of an end of a pipe.
#[derive(Default)]
pub struct Users {
    /// By the number of their registration.
    programs: Vec<(u64, Credentials)>,
    exclusive: bool,
}

impl Users {
    /// One more, who may want it alone. Returns who has it beside, in words; empty if nobody has.
    pub fn admit(
        &mut self,
        name: &str,
        exclusive: bool,
        (number, program): (u64, Credentials),
    ) -> Result<String, Refusal> {
        let others = self.names();
        if self.exclusive {
            return Err(Refusal::new(Errno::BUSY, format!("{name}: {others} has it exclusively; end that one first")));
        }
        if exclusive && !self.programs.is_empty() {
            return Err(Refusal::new(
                Errno::BUSY,
                format!("{name}: it was asked for exclusively, and {others} has it"),
            ));
        }
        self.programs.push((number, program));
        self.exclusive = exclusive;
        Ok(others)
    }

    /// One less.
    pub fn leave(&mut self, number: u64) {
        self.programs.retain(|&(other, _)| other != number);
        self.exclusive = false;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Their process ids.
    pub fn pids(&self) -> Vec<i32> {
        self.programs.iter().map(|(_, program)| program.pid).collect()
    }

    /// The first of them, in words.
    fn names(&self) -> String {
        const MOST: usize = 4;
        let names: Vec<_> = self.programs.iter().take(MOST).map(|(_, program)| program.to_string()).collect();
        let more = self.programs.len().saturating_sub(MOST);
        names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    }
}
