//! The parser: it reads what was encoded, and accepts or refuses any bytes without harm.

use proptest::prelude::*;
use ringpass_vfio_user::*;

fn requests() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let data = prop::collection::vec(any::<u8>(), 1..200);
    let bytes = |request: Request<'_>| (request.command() as u16, request.to_bytes());
    prop_oneof![
        (any::<[u16; 2]>(), data.clone()).prop_map(move |([major, minor], data)| bytes(Request::Version {
            major,
            minor,
            data: &data
        })),
        any::<(u32, u64, u64, u64)>().prop_map(move |(flags, offset, address, size)| bytes(Request::DmaMap {
            flags,
            offset,
            address,
            size
        })),
        any::<(u32, u64, u64)>().prop_map(move |(flags, address, size)| bytes(Request::DmaUnmap {
            flags,
            address,
            size
        })),
        any::<u32>().prop_map(move |argsz| bytes(Request::DeviceInfo { argsz })),
        any::<(u32, u32)>().prop_map(move |(argsz, index)| bytes(Request::RegionInfo { argsz, index })),
        any::<(u32, u32)>().prop_map(move |(argsz, index)| bytes(Request::RegionIoFds { argsz, index })),
        any::<(u32, u32)>().prop_map(move |(argsz, index)| bytes(Request::IrqInfo { argsz, index })),
        any::<(u32, u32, u32, u32)>().prop_map(move |(flags, index, start, count)| {
            // Without the flag for booleans, which would have to follow.
            bytes(Request::SetIrqs { flags: flags & !2, index, start, count })
        }),
        (any::<(u64, u32)>(), 1..=MAX_TRANSFER as u32)
            .prop_map(move |((offset, region), count)| bytes(Request::RegionRead { offset, region, count })),
        (any::<(u64, u32)>(), data).prop_map(move |((offset, region), data)| bytes(Request::RegionWrite {
            offset,
            region,
            data: &data
        })),
        (0usize..20).prop_map(move |count| bytes(Request::RegionWriteMulti { writes: &vec![1; 24 * count] })),
        Just(bytes(Request::Reset)),
    ]
}

/// QEMU gathers at most 200 writes. A message of 2,700 would be handled in one piece, however long that takes.
#[test]
fn a_message_holds_a_bounded_number_of_writes() {
    let parse = |count: usize| {
        let body = Request::RegionWriteMulti { writes: &vec![1; 24 * count] }.to_bytes();
        Request::parse(Command::RegionWriteMulti as u16, &body).map(drop)
    };
    parse(200).unwrap();
    let refusal = parse(201).unwrap_err().to_string();
    assert!(refusal.contains("at most 200"), "{refusal}");
}

proptest! {
    #[test]
    fn what_is_written_is_read((command, body) in requests()) {
        let request = Request::parse(command, &body).unwrap();
        prop_assert_eq!(request.command() as u16, command);
        prop_assert_eq!(request.to_bytes(), body);
    }

    /// Requests that are too short or too long are refused; only data may have any length.
    #[test]
    fn lengths_are_checked((command, mut body) in requests(), more in 1usize..9, shorter in any::<bool>()) {
        let any_length = [Command::Version, Command::RegionWrite, Command::RegionWriteMulti];
        prop_assume!(!any_length.contains(&Command::of(command).unwrap()));
        let len = if shorter { body.len().saturating_sub(more) } else { body.len() + more };
        prop_assume!(len != body.len());
        body.resize(len, 0);
        prop_assert!(Request::parse(command, &body).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(command in 0u16..20, body in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(Request::RegionWriteMulti { writes }) = Request::parse(command, &body) {
            prop_assert_eq!(Request::writes(writes).count() * 24 + 8, body.len());
        }
    }

    #[test]
    fn headers(bytes in any::<[u8; HEADER]>()) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!((HEADER..=MAX_MESSAGE).contains(&(header.size as usize)));
            prop_assert_eq!(Header::parse(&header.to_bytes()).unwrap(), header);
        }
    }
}
