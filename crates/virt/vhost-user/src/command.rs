//! Command numbers of front-end messages.

use std::fmt;

/// Command of a message ("Front-end message types").
///
/// [`Request`](crate::Request) has those that this crate understands. The others are listed so that the log
/// can name a refused command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Command {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    ResetOwner = 4,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    NetSetMtu = 20,
    SetBackendReqFd = 21,
    IotlbMsg = 22,
    SetVringEndian = 23,
    GetConfig = 24,
    SetConfig = 25,
    CreateCryptoSession = 26,
    CloseCryptoSession = 27,
    PostcopyAdvise = 28,
    PostcopyListen = 29,
    PostcopyEnd = 30,
    GetInflightFd = 31,
    SetInflightFd = 32,
    GpuSetSocket = 33,
    ResetDevice = 34,
    VringKick = 35,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
    SetStatus = 39,
    GetStatus = 40,
    GetSharedObject = 41,
    SetDeviceStateFd = 42,
    CheckDeviceState = 43,
    GetShmemConfig = 44,
}

impl Command {
    /// All commands, in order of their numbers.
    pub const ALL: [Self; 44] = {
        use Command::*;
        [
            GetFeatures,
            SetFeatures,
            SetOwner,
            ResetOwner,
            SetMemTable,
            SetLogBase,
            SetLogFd,
            SetVringNum,
            SetVringAddr,
            SetVringBase,
            GetVringBase,
            SetVringKick,
            SetVringCall,
            SetVringErr,
            GetProtocolFeatures,
            SetProtocolFeatures,
            GetQueueNum,
            SetVringEnable,
            SendRarp,
            NetSetMtu,
            SetBackendReqFd,
            IotlbMsg,
            SetVringEndian,
            GetConfig,
            SetConfig,
            CreateCryptoSession,
            CloseCryptoSession,
            PostcopyAdvise,
            PostcopyListen,
            PostcopyEnd,
            GetInflightFd,
            SetInflightFd,
            GpuSetSocket,
            ResetDevice,
            VringKick,
            GetMaxMemSlots,
            AddMemReg,
            RemMemReg,
            SetStatus,
            GetStatus,
            GetSharedObject,
            SetDeviceStateFd,
            CheckDeviceState,
            GetShmemConfig,
        ]
    };

    /// Returns the command with a number, if there is one.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Command {
    /// Writes the name as the specification does: `SET_VRING_NUM`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, letter) in format!("{self:?}").char_indices() {
            let gap = if at > 0 && letter.is_uppercase() { "_" } else { "" };
            write!(f, "{gap}{}", letter.to_ascii_uppercase())?;
        }
        Ok(())
    }
}
