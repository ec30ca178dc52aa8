//! The programs that have registered a port.

use ringpass_ipc::Credentials;
use rustix::io::Errno;

use super::RequestError;

/// Registrations of a port, or of an end of a pipe.
#[derive(Default)]
pub struct Users {
    programs: Vec<User>,
}

/// A program that has registered a port.
pub struct User {
    /// Number of its registration.
    pub number: u64,
    /// Its credentials.
    pub program: Credentials,
    /// Its rings: bit N stands for entry N of the CSB.
    pub rings: u64,
    /// Whether it has them exclusively.
    pub exclusive: bool,
}

impl Users {
    /// Adds a program. Returns the other programs that have some of its rings, in words; empty if there are none.
    ///
    /// # Errors
    /// `EBUSY` if another program has one of the rings exclusively, or if exclusive use was requested and another
    /// program has one of them.
    pub fn admit(&mut self, name: &str, user: User) -> Result<String, RequestError> {
        let sharing = || self.programs.iter().filter(|other| other.rings & user.rings != 0);
        if sharing().any(|other| other.exclusive) {
            let owners = names(sharing().filter(|other| other.exclusive));
            return Err(RequestError::new(
                Errno::BUSY,
                format!("{name}: {owners} has it exclusively; end that one first"),
            ));
        }
        let others = names(sharing());
        if user.exclusive && !others.is_empty() {
            return Err(RequestError::new(
                Errno::BUSY,
                format!("{name}: it was asked for exclusively, and {others} has it"),
            ));
        }
        self.programs.push(user);
        Ok(others)
    }

    /// The programs.
    pub fn all(&self) -> impl Iterator<Item = &User> {
        self.programs.iter()
    }

    /// Removes a program.
    pub fn leave(&mut self, number: u64) {
        self.programs.retain(|user| user.number != number);
    }

    /// Returns the rings of a registration: all, and those that no other one has.
    pub fn rings_of(&self, number: u64) -> Option<(u64, u64)> {
        let own = self.programs.iter().find(|user| user.number == number)?.rings;
        let others = self.programs.iter().filter(|user| user.number != number).fold(0, |all, user| all | user.rings);
        Some((own, own & !others))
    }

    /// Number of registrations.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Process IDs of the programs.
    pub fn pids(&self) -> Vec<i32> {
        self.programs.iter().map(|user| user.program.pid).collect()
    }
}

impl FromIterator<User> for Users {
    fn from_iter<I: IntoIterator<Item = User>>(users: I) -> Self {
        Self { programs: users.into_iter().collect() }
    }
}

/// Names of the first programs, in words.
fn names<'a>(users: impl Iterator<Item = &'a User>) -> String {
    const MAX_NAMES: usize = 4;
    let all: Vec<String> = users.map(|user| user.program.to_string()).collect();
    let more = all.len().saturating_sub(MAX_NAMES);
    all[..all.len() - more].join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_exclusive_one_by_one() {
        let mut users = Users::default();
        let mut admit = |number, rings, exclusive| {
            let program = Credentials { pid: number as i32, uid: 0, gid: 0 };
            users.admit("x", User { number, program, rings, exclusive }).map_err(|refused| refused.errno)
        };
        assert_eq!(admit(1, 0b0001, true), Ok(String::new()));
        assert_eq!(admit(2, 0b0011, false), Err(Errno::BUSY), "one of them is exclusive");
        assert_eq!(admit(3, 0b0110, false), Ok(String::new()));
        assert!(admit(4, 0b0010, false).is_ok_and(|others| others.contains('3') && !others.contains('1')));
        assert_eq!(admit(5, 0b1100, true), Err(Errno::BUSY));
        assert_eq!(admit(6, 0b1000, true), Ok(String::new()));
        assert_eq!(admit(7, 0, true), Ok(String::new()), "no ring is nobody's");
        users.leave(1);
        let program = Credentials { pid: 8, uid: 0, gid: 0 };
        assert!(users.admit("x", User { number: 8, program, rings: 1, exclusive: false }).is_ok());
    }
}
