//! `select` by `poll`: converts bit sets of descriptors to a list, and back.

use libc::pollfd;
use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, c_short,
};
use rustix::io::Errno;

/// Bits of a word of a set.
const BITS: usize = 64;
/// A program's sets: readable, writable, exceptions. Each that is given has as many words as its descriptors
/// need.
pub type Sets<'a> = [Option<&'a mut [u64]>; 3];

/// Events to request from `poll` for each set.
const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];
/// Events that make a descriptor ready in each set.
const READY: [c_short; 3] =
    [POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR, POLLPRI];

/// Number of words of a set of descriptors below `fds`.
pub fn words(fds: usize) -> usize {
    fds.div_ceil(BITS)
}

/// Returns the descriptors below `fds` that are in a set, with the events to request from `poll`.
pub fn list(fds: usize, sets: &Sets<'_>) -> Vec<pollfd> {
    let is_in =
        |set: &Option<&mut [u64]>, fd: usize| set.as_ref().is_some_and(|set| set[fd / BITS] >> (fd % BITS) & 1 == 1);
    let asked =
        |fd: usize| sets.iter().zip(ASKED).filter(|(set, _)| is_in(set, fd)).fold(0, |all, (_, events)| all | events);
    (0..fds).map(|fd| pollfd { fd: fd as i32, events: asked(fd), revents: 0 }).filter(|fd| fd.events != 0).collect()
}

/// Reduces the sets to the descriptors that are ready. Returns their number in all sets together.
pub fn answer(polled: &[pollfd], sets: &mut Sets<'_>) -> Result<usize, Errno> {
    if polled.iter().any(|fd| fd.revents & POLLNVAL != 0) {
        return Err(Errno::BADF);
    }
    let mut count = 0;
    for ((set, asked), ready) in sets.iter_mut().zip(ASKED).zip(READY) {
        let Some(set) = set else { continue };
        set.fill(0);
        for fd in polled.iter().filter(|fd| fd.events & asked != 0 && fd.revents & ready != 0) {
            set[fd.fd as usize / BITS] |= 1 << (fd.fd as usize % BITS);
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_a_list_and_back() {
        let (mut read, mut write) = ([0_u64; 2], [0_u64; 2]);
        (read[0], read[1], write[1]) = (1 << 3 | 1 << 5, 1 << 1, 1 << 1);
        let mut sets: Sets<'_> = [Some(&mut read), Some(&mut write), None];
        let mut polled = list(66, &sets);
        assert_eq!(polled.iter().map(|fd| (fd.fd, fd.events)).collect::<Vec<_>>(), [(3, 1), (5, 1), (65, 5)]);
        polled[0].revents = POLLHUP;
        polled[2].revents = POLLOUT;
        assert_eq!(answer(&polled, &mut sets), Ok(2));
        assert_eq!((read, write), ([1 << 3, 0], [0, 1 << 1]));
        let mut sets: Sets<'_> = [Some(&mut read), None, None];
        let mut polled = list(64, &sets);
        assert_eq!(polled.len(), 1, "what lies beyond is not asked for");
        polled[0].revents = POLLNVAL;
        assert_eq!(answer(&polled, &mut sets), Err(Errno::BADF));
    }

    proptest::proptest! {
        /// If all requested events are ready, the sets stay as they are.
        #[test]
        fn all_that_is_ready_stays(mut read: [u64; 4], mut write: [u64; 4], fds in 0_usize..=256) {
            let before = (read, write);
            let mut sets: Sets<'_> = [Some(&mut read), Some(&mut write), None];
            let mut polled = list(fds, &sets);
            polled.iter_mut().for_each(|fd| fd.revents = fd.events);
            let count = answer(&polled, &mut sets).unwrap();
            let kept = |set: [u64; 4]| (0..fds).filter(|fd| set[fd / 64] >> (fd % 64) & 1 == 1).collect::<Vec<_>>();
            let [read_before, write_before] = [kept(before.0), kept(before.1)];
            proptest::prop_assert_eq!(count, read_before.len() + write_before.len());
            proptest::prop_assert_eq!(([kept(read), kept(write)], read[3] >> 63 | write[3] >> 63 > 0),
                ([read_before, write_before], fds == 256 && (before.0[3] >> 63 | before.1[3] >> 63 > 0)));
        }
    }
}
