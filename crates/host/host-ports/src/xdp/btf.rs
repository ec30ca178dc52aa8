//! Numbers of the kernel's functions that programs may call, from its description of its types (Linux, bpf/btf).

/// The kernel's description of itself.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// Largest description that is read, in bytes: ten times what kernels have.
const LARGEST: u64 = 64 << 20;

const MAGIC: u16 = 0xeb9f;
const KIND_FUNCTION: u32 = 12;

/// Returns the number of each function, if the kernel has it.
pub(super) fn functions<const N: usize>(names: [&str; N]) -> [Option<u32>; N] {
    use std::io::Read;
    let mut text = Vec::new();
    let read = std::fs::File::open(KERNEL).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    read.ok().and_then(|_| find(&text, names)).unwrap_or([None; N])
}

fn word(text: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(text.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn find<const N: usize>(text: &[u8], names: [&str; N]) -> Option<[Option<u32>; N]> {
    // Magic number, version and flags; length of the header; offset behind it and length of the types, and of the strings.
    let header: [u32; 6] = std::array::from_fn(|at| word(text, 4 * at).unwrap_or_default());
    let [first, header_len, types, types_len, strings, strings_len] = header;
    if first as u16 != MAGIC {
        return None;
    }
    let part = |offset: u32, len: u32| {
        let start = (header_len as usize).checked_add(offset as usize)?;
        text.get(start..start.checked_add(len as usize)?)
    };
    let (types, strings) = (part(types, types_len)?, part(strings, strings_len)?);
    let has_name = |name: &str, offset: u32| {
        let rest = strings.get(offset as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let mut found = [None; N];
    let (mut at, mut number) = (0, 1);
    // A type: offset of its name; kind and number of members; size. What follows depends on the kind.
    while let (Some(name), Some(info)) = (word(types, at), word(types, at + 4)) {
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let more = match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 | 15 | 19 => 12 * members,
            6 | 13 => 8 * members,
            _ => 0,
        };
        if kind == KIND_FUNCTION {
            let place = names.iter().position(|wanted| has_name(wanted, name));
            place.into_iter().for_each(|place| found[place] = Some(number));
        }
        (at, number) = (at + 12 + more, number + 1);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_behind_types_of_every_kind() {
        let mut types = Vec::new();
        let mut add = |name: u32, kind: u32, members: u32, more: usize| {
            types.extend([name, kind << 24 | members, 0].map(u32::to_ne_bytes).concat());
            types.extend(vec![0; more]);
        };
        add(0, 1, 0, 4);
        add(0, 4, 3, 36);
        add(1, 12, 0, 0);
        add(0, 13, 2, 16);
        add(7, 12, 0, 0);
        let strings = b"\0first\0second\0";
        let header = [u32::from(MAGIC) | 1 << 16, 24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let text = [&header.map(u32::to_ne_bytes).concat()[..], &types, strings].concat();
        assert_eq!(find(&text, ["second", "first", "fir", "none"]), Some([Some(5), Some(3), None, None]));
        for len in 0..text.len() {
            find(&text[..len], ["second"]);
        }
        assert_eq!(find(b"something else", ["first"]), None);
    }
}
