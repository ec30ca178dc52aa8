//! Frames at an offset in their buffers.

use ringpass_netmap::request::AskedOffsets;
use rustix::io::Errno;

use super::{Ports, Registration};
use crate::server::RequestError;

impl Ports {
    /// Sets where frames begin in the buffers of a registration's rings. Returns what was granted.
    ///
    /// # Errors
    /// `EINVAL` for offsets that cannot be, `EBUSY` if the rings have others that do not allow these, `EOPNOTSUPP` for monitors of pipes,
    /// and for registrations without rings.
    pub fn set_offsets(
        &mut self,
        Registration { name, number, .. }: &Registration,
        asked: &AskedOffsets,
    ) -> Result<AskedOffsets, RequestError> {
        let Self { memories, pipes, open, monitors, .. } = self;
        let pipe = name.pipe().map(|(parent, pipe)| (parent.to_owned(), pipe.to_owned()));
        let unsupported = || RequestError::new(Errno::OPNOTSUPP, format!("{name}: these rings have no offsets"));
        let (memory, served, users, id) = if let Some(monitor) = monitors.get_mut(number) {
            if name.pipe().is_some() {
                return Err(unsupported());
            }
            let id = monitor.memory_id();
            (&mut monitor.memory, Some(&mut monitor.served), None, id)
        } else if let Some(pipe) = pipe.and_then(|key| pipes.get_mut(&key)) {
            let end = usize::from(!name.is_first_end());
            (&mut pipe.ends[end], None, Some(&pipe.users[end]), pipe.memory_id)
        } else {
            let port = open.get_mut(&name.port).ok_or_else(unsupported)?;
            let id = port.memory_id();
            (&mut port.memory, Some(&mut port.served), Some(&port.users), id)
        };
        // A monitor has all of its rings alone.
        let all = (u64::MAX, u64::MAX);
        let (rings, own) = users.map_or(Some(all), |users| users.rings_of(*number)).ok_or_else(unsupported)?;
        let region = memories.region(id);
        let offsets = asked.offsets(region.pools().buffer_size as usize);
        let offsets = offsets.map_err(|why| RequestError::new(Errno::INVAL, format!("{name}: {why}")))?;
        let initial = (asked.initial > 0).then_some((own, asked.initial));
        let Some(granted) = memory.set_offsets(region, rings, offsets, initial) else {
            let why = format!("{name}: its rings have smaller offsets already, for other programs");
            return Err(RequestError::new(Errno::BUSY, why));
        };
        if let Some(served) = served {
            served.set_offsets(&|entry| memory.offsets(entry));
        }
        Ok(asked.granted(granted))
    }
}
