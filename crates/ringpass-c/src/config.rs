//! Configuration of ports.

use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;

use ringpass::{Notices, PageSize};

use crate::result;

/// Configuration of what ringpass_open opens. It starts with defaults that suit most programs, and can be changed by the
/// functions ringpass_config_set_…; numbers out of range make ringpass_open fail. It belongs to one thread at a time.
pub struct Config(pub(crate) ringpass::Config);

impl Default for Config {
    /// Returns the library's defaults, except that notices go nowhere unless the program asks for them.
    fn default() -> Self {
        Self(ringpass::Config { notices: Notices::new(|_| {}), ..Default::default() })
    }
}

/// Receives a notice: one line about something that was chosen on its own, such as ordinary pages in place of huge ones, and how
/// to get the better one. `text` is valid during the call.
pub type Notice = Option<unsafe extern "C" fn(text: *const c_char, user: *mut c_void)>;

/// Huge pages of 2 MiB if enough are free, otherwise ordinary ones, with a notice. The default.
pub const RINGPASS_PAGES_ANY: u32 = 0;
/// Ordinary pages.
pub const RINGPASS_PAGES_ORDINARY: u32 = 1;
/// Huge pages of 2 MiB.
pub const RINGPASS_PAGES_2M: u32 = 2;
/// Huge pages of 1 GiB.
pub const RINGPASS_PAGES_1G: u32 = 3;

/// Returns a new configuration with the defaults, to be freed by ringpass_config_free; NULL if that failed.
#[unsafe(no_mangle)]
pub extern "C" fn ringpass_config_new() -> *mut Config {
    let mut new = std::ptr::null_mut();
    result(|| {
        new = Box::into_raw(Box::default());
        Ok(0)
    });
    new
}

/// Frees a configuration. Ports that were opened with it keep theirs.
///
/// # Safety
/// `config` came from ringpass_config_new and is not used afterwards, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_free(config: *mut Config) {
    result(|| {
        if !config.is_null() {
            // SAFETY: the caller says that `ringpass_config_new` made it, by `Box::into_raw`, and gives it up.
            drop(unsafe { Box::from_raw(config) });
        }
        Ok(0)
    });
}

/// Changes a configuration, unless it is NULL.
///
/// # Safety
/// `config` is NULL, or valid and used by nobody else during the call.
unsafe fn change(config: *mut Config, change: impl FnOnce(&mut ringpass::Config)) {
    result(|| {
        // SAFETY: if not NULL, it is valid and not used by others, by this function's contract.
        if let Some(config) = unsafe { config.as_mut() } {
            change(&mut config.0);
        }
        Ok(0)
    });
}

/// Sets the number of queue pairs of each port: 1 to 64. Default: 1.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_queues(config: *mut Config, queues: usize) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.port.queues = queues) };
}

/// Sets the descriptors of each Rx and Tx ring: powers of two from 64 to 4096. Default: 512.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_rings(config: *mut Config, rx: usize, tx: usize) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| (config.port.rx_ring, config.port.tx_ring) = (rx, tx)) };
}

/// Sets the largest payload of a frame in bytes: 68 to 9710. Default: 1500. Above 2030, a frame may lie in several buffers
/// (total in struct ringpass_packet).
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_mtu(config: *mut Config, mtu: usize) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.port.mtu = mtu) };
}

/// Sets whether ports receive frames for any MAC address. Default: true.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_promiscuous(config: *mut Config, on: bool) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.port.promiscuous = on) };
}

/// Sets whether a TAP or packet socket whose interface was deleted waits for one of the same name. Default: false, it is gone.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_rejoin(config: *mut Config, on: bool) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.port.rejoin = on) };
}

/// Sets whether ringpass_wait only polls and never sleeps. Default: false.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_poll(config: *mut Config, on: bool) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.poll = on) };
}

/// Sets the latency that a loop of ringpass_wait may add so that packets collect while it sleeps, in microseconds; none below 30. Default: 50.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_latency_budget(config: *mut Config, microseconds: u32) {
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.latency_budget = Duration::from_micros(microseconds.into())) };
}

/// Sets the pages under packets and rings, RINGPASS_PAGES_…; any other number is RINGPASS_PAGES_ANY.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_pages(config: *mut Config, pages: u32) {
    let pages = match pages {
        RINGPASS_PAGES_ORDINARY => Some(PageSize::Ordinary),
        RINGPASS_PAGES_2M => Some(PageSize::Huge2M),
        RINGPASS_PAGES_1G => Some(PageSize::Huge1G),
        _ => None,
    };
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.hugepages = pages) };
}

/// Allows taking a card away from the kernel even if its interface is in use. `card` is its PCI address. May be called for
/// several cards.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it. `card` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_take_over(config: *mut Config, card: *const c_char) {
    if card.is_null() {
        return;
    }
    // SAFETY: `card` is not NULL, and the caller says that it is a string, valid during the call.
    let card = unsafe { CStr::from_ptr(card) };
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.take_over.push(card.to_string_lossy().into_owned())) };
}

/// Sets the function that receives notices; NULL, the default, for none. It is called with `user` while ports are opened and,
/// from any thread and possibly several at once, until they are closed. It must return, and not call this library.
///
/// # Safety
/// `config` came from ringpass_config_new, and no other thread uses it. `notice` may be called with `user` as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_config_set_notice(config: *mut Config, notice: Notice, user: *mut c_void) {
    struct User(*mut c_void);
    // SAFETY: it is only passed to `notice`, which the caller says may be called with it from any thread,
    unsafe impl Send for User {}
    // SAFETY: and from several at once.
    unsafe impl Sync for User {}
    let user = User(user);
    let show = move |text: &str| {
        let user: &User = &user;
        if let (Some(notice), Ok(text)) = (notice, CString::new(text)) {
            // SAFETY: the caller says that `notice` may be called with `user` from any thread; `text` lives until it
            // returns.
            unsafe { notice(text.as_ptr(), user.0) };
        }
    };
    // SAFETY: the caller says that `config` is valid and that no other thread uses it.
    unsafe { change(config, |config| config.notices = Notices::new(show)) };
}
