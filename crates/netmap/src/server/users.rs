//! Who has registered a port.

use rustix::io::Errno;

use super::Refusal;

/// The registrations of a port, or of an end of a pipe.
#[derive(Default)]
pub struct Users {
    count: usize,
    exclusive: bool,
}

impl Users {
    /// One more, who may want it alone.
    pub fn admit(&mut self, name: &str, exclusive: bool) -> Result<(), Refusal> {
        if self.exclusive || exclusive && self.count > 0 {
            return Err(Refusal::new(Errno::BUSY, format!("{name}: another program has it, or wants it, exclusively")));
        }
        self.count += 1;
        self.exclusive = exclusive;
        Ok(())
    }

    /// One less.
    pub fn leave(&mut self) {
        self.count -= 1;
        self.exclusive = false;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }
}
