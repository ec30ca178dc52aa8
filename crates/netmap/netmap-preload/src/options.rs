//! Options of a request, each with a status of its own: a linked list in the program's memory, which may contain itself or never end.

use rustix::io::Errno;

use crate::option_header::OptionHeader;
use crate::refusal::Refusal;
use crate::user_memory::UserMemory;

/// The options of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<RequestOption>);

/// An option of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestOption {
    /// Its address.
    at: u64,
    kind: u32,
    /// Bytes of the whole option.
    len: u64,
    /// Its status, once it was used: an error number, or 0. Others are not supported.
    status: Option<i32>,
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
                    for option in &mut options.0 {
                        let invalid = blamed.contains(&option.at);
                        option.status = Some(if invalid { Errno::INVAL.raw_os_error() } else { 0 });
                    }
                    options.write_statuses(program)?;
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
        let mut at = first;
        while at != 0 {
            copied += LINK + OptionHeader::LEN;
            if copied > ROOM {
                return Err(too_long(false));
            }
            let header = OptionHeader::parse(&program.read(at).map_err(|errno| (errno.into(), true))?);
            let earlier = self.find(header.kind).map(|option| option.at);
            let len = (OptionHeader::LEN + header.payload()) as u64;
            self.0.push(RequestOption { at, kind: header.kind, len, status: None });
            bytes += OptionHeader::LEN;
            if header.kind == 0 {
                blamed.push(at);
                return Err((Refusal::new(Errno::INVAL, "an option of kind 0"), true));
            }
            if header.kind < OptionHeader::KINDS {
                if let Some(earlier) = earlier {
                    blamed.extend([earlier, at]);
                    return Err((Refusal::new(Errno::INVAL, format!("option {} twice", header.kind)), true));
                }
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

    fn find(&self, kind: u32) -> Option<&RequestOption> {
        self.0.iter().find(|option| option.kind == kind)
    }

    /// Returns the address behind the header of the option of a known kind, and the bytes from there to its end; `None` if there is
    /// none.
    pub fn payload(&self, kind: u32) -> Option<(u64, u64)> {
        let header = OptionHeader::LEN as u64;
        self.find(kind).map(|option| (option.at.wrapping_add(header), option.len - header))
    }

    /// Records that the option of a kind was used, and its status. Returns the result.
    pub fn used<T>(&mut self, kind: u32, result: Result<T, Refusal>) -> Result<T, Refusal> {
        let status = result.as_ref().err().map_or(0, |refusal| refusal.errno.raw_os_error());
        self.0.iter_mut().filter(|option| option.kind == kind).for_each(|option| option.status = Some(status));
        result
    }

    /// Refuses options that were not used.
    pub fn all_used(&self) -> Result<(), Refusal> {
        match self.0.iter().find(|option| option.status.is_none()) {
            Some(RequestOption { kind, .. }) => {
                Err(Refusal::new(Errno::OPNOTSUPP, format!("option {kind} is not supported by this request")))
            }
            None => Ok(()),
        }
    }

    /// Writes the status of each: `EOPNOTSUPP` for those that were not used.
    pub fn write_statuses(&self, program: &mut impl UserMemory) -> Result<(), Refusal> {
        for RequestOption { at, status, .. } in &self.0 {
            let status = status.unwrap_or(Errno::OPNOTSUPP.raw_os_error());
            program.write(at.wrapping_add(STATUS), &status.to_le_bytes())?;
        }
        Ok(())
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
        assert_eq!(Options::read(0, 56, &mut Memory(Vec::new())).unwrap(), Options::default());
        let mut memory = list(&[(1, 0), (77, u64::MAX), (3, 0), (77, 0)], 0);
        let before = memory.0.clone();
        let options = Options::read(64, 56, &mut memory).unwrap();
        assert!(memory.0 == before, "nothing is written before the request was executed");
        assert_eq!([1, 2, 3, 5].map(|kind| options.payload(kind)), [Some((88, 72)), None, Some((216, 16)), None]);
        options.write_statuses(&mut memory).unwrap();
        assert_eq!(statuses(&memory, 4), [UNSUPPORTED; 4]);
        let mut options = options;
        options.used(1, Ok(())).unwrap();
        assert!(options.used::<()>(3, Err(Errno::FAULT.into())).is_err());
        assert_eq!(options.all_used().unwrap_err().errno, Errno::OPNOTSUPP);
        options.write_statuses(&mut memory).unwrap();
        assert_eq!(statuses(&memory, 4), [0, UNSUPPORTED, Errno::FAULT.raw_os_error(), UNSUPPORTED]);
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
}
