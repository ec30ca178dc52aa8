//! Options of a request: a linked list in the program's memory, which may contain itself or never end.

use rustix::io::Errno;

use crate::option_header::OptionHeader;
use crate::refusal::Refusal;
use crate::user_memory::UserMemory;

/// The options of a request, none of which is supported.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Addresses of the options, in the order of the list.
    at: Vec<u64>,
    /// Whether there is one of each known kind.
    known: [bool; OptionHeader::KINDS],
}

/// Largest size of a request's body with its options.
const MAX_REQUEST: usize = 4096;
/// Bytes that netmap has for the options of a request without a body, with [`LINK`] bytes more for each.
const ROOM: usize = 4144;
const LINK: usize = 8;
/// Offset of the status in an option.
const STATUS: u64 = 12;

impl Options {
    /// Reads the options of a request whose body has `body` bytes.
    ///
    /// # Errors
    /// `EMSGSIZE` if there are more than netmap accepts, which bounds every list; `EINVAL` for a kind 0, or one that
    /// comes twice. As in netmap, the options that were read then have a status, 0 or `EINVAL`, except those
    /// of a list that is too long.
    pub fn read(first: u64, body: usize, program: &mut impl UserMemory) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut blamed = Vec::new();
        match options.read_list(first, body, program, &mut blamed) {
            Ok(()) => Ok(options),
            Err((refusal, statuses)) => {
                if statuses {
                    options.write_status(0, program)?;
                    options.at.retain(|at| blamed.contains(at));
                    options.write_status(Errno::INVAL.raw_os_error(), program)?;
                }
                Err(refusal)
            }
        }
    }

    /// Reads the list. On an error, says also whether the options that were read get a status; those in `blamed`
    /// are invalid.
    fn read_list(
        &mut self,
        first: u64,
        body: usize,
        program: &impl UserMemory,
        blamed: &mut Vec<u64>,
    ) -> Result<(), (Refusal, bool)> {
        let too_long = |statuses| (Refusal::new(Errno::MSGSIZE, "more options than a request may have"), statuses);
        // Bytes of the request, and those of netmap's copy of its options, with a link for each.
        let (mut bytes, mut copied) = (body, body);
        let mut first_of = [0; OptionHeader::KINDS];
        let mut at = first;
        while at != 0 {
            copied += LINK + OptionHeader::LEN;
            if copied > ROOM {
                return Err(too_long(false));
            }
            let header = OptionHeader::parse(&program.read(at).map_err(|errno| (errno.into(), true))?);
            self.at.push(at);
            bytes += OptionHeader::LEN;
            if header.kind == 0 {
                blamed.push(at);
                return Err((Refusal::new(Errno::INVAL, "an option of kind 0"), true));
            }
            if let Some(known) = self.known.get_mut(header.kind as usize) {
                if std::mem::replace(known, true) {
                    blamed.extend([first_of[header.kind as usize], at]);
                    return Err((Refusal::new(Errno::INVAL, format!("option {} twice", header.kind)), true));
                }
                first_of[header.kind as usize] = at;
                let more = header.payload();
                if header.size > MAX_REQUEST as u64 || bytes + more > MAX_REQUEST || copied + more > ROOM {
                    return Err(too_long(true));
                }
                bytes += more;
                copied += more;
            }
            at = header.next;
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Whether there is one of this kind.
    pub fn has(&self, kind: u32) -> bool {
        self.known.get(kind as usize).is_some_and(|known| *known)
    }

    /// Sets the status of each to `EOPNOTSUPP`.
    pub fn refuse(&self, program: &mut impl UserMemory) -> Result<(), Refusal> {
        self.write_status(Errno::OPNOTSUPP.raw_os_error(), program)
    }

    fn write_status(&self, status: i32, program: &mut impl UserMemory) -> Result<(), Refusal> {
        let status = status.to_le_bytes();
        self.at.iter().try_for_each(|at| program.write(at.wrapping_add(STATUS), &status)).map_err(Refusal::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::Memory;

    const UNSUPPORTED: i32 = Errno::OPNOTSUPP.raw_os_error();
    const INVALID: i32 = Errno::INVAL.raw_os_error();
    /// A status that a program has written.
    const BEFORE: i32 = 77;

    /// Creates options of these kinds, with a size, 64 bytes apart; the last is linked to `last`.
    fn list(options: &[(u32, u64)], last: u64) -> Memory {
        let mut memory = Memory(vec![0; 64 * options.len()]);
        for (number, (kind, size)) in options.iter().enumerate() {
            let at = place(number);
            let next = if number + 1 == options.len() { last } else { place(number + 1) };
            memory.write(at, &next.to_le_bytes()).unwrap();
            memory.write(at + 8, &kind.to_le_bytes()).unwrap();
            memory.write(at + STATUS, &BEFORE.to_le_bytes()).unwrap();
            memory.write(at + 16, &size.to_le_bytes()).unwrap();
        }
        memory
    }

    fn place(number: usize) -> u64 {
        64 * (number as u64 + 1)
    }

    fn statuses(memory: &Memory, count: usize) -> Vec<i32> {
        (0..count).map(|number| i32::from_le_bytes(memory.read(place(number) + STATUS).unwrap())).collect()
    }

    /// Reads a list that must be refused. Returns the error and the status of each option.
    fn refused(options: &[(u32, u64)], last: u64) -> (Errno, Vec<i32>) {
        let mut memory = list(options, last);
        let errno = Options::read(64, 56, &mut memory).unwrap_err().errno;
        (errno, statuses(&memory, options.len()))
    }

    #[test]
    fn valid_lists_are_refused_one_by_one() {
        assert!(Options::read(0, 56, &mut Memory(Vec::new())).unwrap().is_empty());
        let mut memory = list(&[(1, 0), (77, u64::MAX), (3, 0), (77, 0)], 0);
        let before = memory.0.clone();
        let options = Options::read(64, 56, &mut memory).unwrap();
        assert!(memory.0 == before, "nothing is written before the request was executed");
        assert!(options.has(1) && options.has(3) && !options.has(2) && !options.has(77) && !options.has(u32::MAX));
        options.refuse(&mut memory).unwrap();
        assert_eq!(statuses(&memory, 4), [UNSUPPORTED; 4]);
        (0..4).for_each(|number| memory.write(place(number) + STATUS, &BEFORE.to_le_bytes()).unwrap());
        assert!(memory.0 == before, "only statuses are written");
    }

    #[test]
    fn invalid_options_are_blamed_and_those_behind_them_left() {
        assert_eq!(refused(&[(3, 0), (0, 0), (1, 0)], 0), (Errno::INVAL, vec![0, INVALID, BEFORE]));
        assert_eq!(refused(&[(3, 0), (99, 0), (3, 0), (4, 0)], 0), (Errno::INVAL, vec![INVALID, 0, INVALID, BEFORE]));
        assert_eq!(refused(&[(3, 0), (5, 4097), (0, 0)], 0), (Errno::MSGSIZE, vec![0, 0, BEFORE]));
        assert_eq!(refused(&[(2, 4000), (5, 0)], 0), (Errno::MSGSIZE, vec![0, 0]), "both are too large together");
        // An address that cannot be read.
        assert_eq!(refused(&[(3, 0), (4, 0)], 8), (Errno::FAULT, vec![0, 0]));
    }

    #[test]
    fn lists_without_an_end_are_too_long_or_have_options_twice() {
        assert_eq!(refused(&[(3, 0)], 64), (Errno::INVAL, vec![INVALID]));
        assert_eq!(refused(&[(99, 0)], 64), (Errno::MSGSIZE, vec![BEFORE]));
        // As many as netmap has room for with the body of a registration, and one more.
        let options = |count| vec![(99, 0); count];
        assert!(Options::read(64, 56, &mut list(&options(127), 0)).is_ok());
        assert_eq!(refused(&options(128), 0), (Errno::MSGSIZE, vec![BEFORE; 128]));
    }

    proptest::proptest! {
        /// The loop ends, whatever the memory contains.
        #[test]
        fn options_of_any_kind_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), first in 0_u64..600) {
            let _ = Options::read(first, 56, &mut Memory(bytes));
        }
    }
}
