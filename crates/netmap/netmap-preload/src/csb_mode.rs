//! CSB mode: the program exchanges the positions of its rings in arrays of its own, which the [loop](crate::sync_loop) reads and
//! writes, instead of in the rings' headers.

use netmap::client::Port;
use netmap::csb::{Csb, ENTRY};
use netmap::request::register::EXCLUSIVE;
use netmap::{PortRing, Relay};
use rustix::io::Errno;

use crate::option_header::OptionHeader;
use crate::options::Options;
use crate::refusal::Refusal;
use crate::user_memory::UserMemory;

/// Takes the arrays that the option of a request names, and fills them in.
///
/// # Errors
/// `EINVAL`, as from netmap, for a port that is not exclusive, and for arrays that are not aligned to their entries; `EFAULT` for memory
/// that is not there.
pub fn enable(port: &Port, options: &mut Options, program: &impl UserMemory) -> Result<Csb, Refusal> {
    let Some((at, _)) = options.payload(OptionHeader::CSB) else {
        return Err(Refusal::new(Errno::INVAL, "a request to use a CSB, without the option that names it"));
    };
    options.used(OptionHeader::CSB, take(port, at, program))
}

fn take(port: &Port, option: u64, program: &impl UserMemory) -> Result<Csb, Refusal> {
    let invalid = |why: &str| Refusal::new(Errno::INVAL, format!("{}: {why}", port.name()));
    if port.granted().flags & EXCLUSIVE == 0 {
        return Err(invalid("CSB mode needs NR_EXCLUSIVE"));
    }
    let arrays = program.read::<16>(option)?;
    let address = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| arrays[at + n]));
    let (atok, ktoa) = (address(0), address(8));
    if !(atok | ktoa).is_multiple_of(ENTRY as u64) {
        return Err(invalid("the arrays of a CSB are aligned to 64 bytes"));
    }
    let entries = rings(port).count();
    let [atok, ktoa] = [program.map(atok, entries * ENTRY)?, program.map(ktoa, entries * ENTRY)?];
    let csb = Csb::from_halves((&atok, 0), (&ktoa, 0), entries).expect("aligned, and as long as all entries");
    for (entry, ring) in rings(port).enumerate() {
        let begun = Relay::new(ring, entry).begin(&csb);
        begun.map_err(|error| Refusal::new(Errno::IO, format!("{}: {error}", port.name())))?;
        // As netmap has them: both sides wake each other until they say otherwise.
        csb.set_appl_need_kick(entry, true);
        csb.set_kern_need_kick(entry, true);
    }
    Ok(csb)
}

/// Returns the rings of a port in the order of their CSB entries.
pub fn rings(port: &Port) -> impl Iterator<Item = &PortRing> {
    port.tx().iter().chain(port.rx())
}
