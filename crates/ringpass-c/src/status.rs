//! Results of functions: codes, and the text of the last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringpass::Error;

/// An error without a code of its own; ringpass_error() tells.
pub const RINGPASS_FAILED: c_int = -1;
/// A malformed address, a number out of its range, or an argument that is NULL or names nothing.
pub const RINGPASS_INVALID: c_int = -2;
/// There is no such device, interface, file or peer.
pub const RINGPASS_NOT_FOUND: c_int = -3;
/// This user may not do that.
pub const RINGPASS_PERMISSION: c_int = -4;
/// Somebody else uses it.
pub const RINGPASS_BUSY: c_int = -5;
/// There is too little memory, or there are too few huge pages.
pub const RINGPASS_NO_MEMORY: c_int = -6;
/// The device, interface or peer behind a port has disappeared.
pub const RINGPASS_GONE: c_int = -7;
/// A defect of Ringpass; please report it. The ports should be closed.
pub const RINGPASS_BUG: c_int = -8;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// A code and its text.
pub(crate) struct Failure(pub(crate) c_int, pub(crate) String);

impl Failure {
    pub(crate) fn invalid(text: &str) -> Self {
        Self(RINGPASS_INVALID, text.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(code(&error), error.to_string())
    }
}

/// Returns the code of an error.
fn code(error: &Error) -> c_int {
    match error {
        Error::Address(_) | Error::Config(_) => RINGPASS_INVALID,
        Error::Busy(_) => RINGPASS_BUSY,
        Error::Permission(_) => RINGPASS_PERMISSION,
        Error::NotFound(_) | Error::NoDriver(_) => RINGPASS_NOT_FOUND,
        Error::Os { source, .. } | Error::Memory(ringpass_memory::Error::Os { source, .. }) => os_code(source),
        Error::Memory(_) | Error::NoHugePages(_) => RINGPASS_NO_MEMORY,
        Error::Gone(_) => RINGPASS_GONE,
        _ => RINGPASS_FAILED,
    }
}

fn os_code(error: &io::Error) -> c_int {
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(ENXIO | ENODEV)) => RINGPASS_NOT_FOUND,
        (io::ErrorKind::PermissionDenied, _) => RINGPASS_PERMISSION,
        (io::ErrorKind::ResourceBusy | io::ErrorKind::AddrInUse, _) => RINGPASS_BUSY,
        (io::ErrorKind::OutOfMemory, _) => RINGPASS_NO_MEMORY,
        (io::ErrorKind::InvalidInput, _) => RINGPASS_INVALID,
        _ => RINGPASS_FAILED,
    }
}

/// Runs the body of a function. Keeps the text of its error, and turns a panic into an error.
#[inline]
pub(crate) fn result(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => fail(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            fail(Failure(RINGPASS_BUG, format!("a defect of Ringpass: {}", text.unwrap_or("a panic"))))
        }
    }
}

#[cold]
fn fail(Failure(code, text): Failure) -> c_int {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no text any more.
    let _ = TEXT.try_with(|last| last.replace(text));
    code
}

/// Returns the text of the last error of this thread: one line, with cause and remedy; "" if there was none. It is valid until
/// the next error of this thread, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn ringpass_error() -> *const c_char {
    TEXT.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn ringpass_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: the text is valid until this thread's next error, and is copied at once.
        unsafe { CStr::from_ptr(ringpass_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn errors_have_codes() {
        let os = |number| code(&Error::Os { what: "it".into(), source: io::Error::from_raw_os_error(number) });
        assert_eq!([1, 13, 16, 98].map(os), [RINGPASS_PERMISSION, RINGPASS_PERMISSION, RINGPASS_BUSY, RINGPASS_BUSY]);
        assert_eq!([2, 6, 19].map(os), [RINGPASS_NOT_FOUND; 3]);
        assert_eq!([12, 22, 5].map(os), [RINGPASS_NO_MEMORY, RINGPASS_INVALID, RINGPASS_FAILED]);
        assert_eq!(code(&Error::Address("?".into())), RINGPASS_INVALID);
        assert_eq!(code(&Error::Gone("it".into())), RINGPASS_GONE);
        assert_eq!(code(&Error::Fault("?".into())), RINGPASS_FAILED);
    }

    #[test]
    fn a_panic_becomes_an_error_and_texts_belong_to_their_threads() {
        assert_eq!(text(), "");
        assert_eq!(result(|| Err(Failure::invalid("nothing\0here"))), RINGPASS_INVALID);
        assert_eq!(text(), "nothing?here");
        assert_eq!(result(|| panic!("on purpose")), RINGPASS_BUG);
        assert_eq!(text(), "a defect of Ringpass: on purpose");
        assert_eq!(std::thread::spawn(text).join().unwrap(), "");
        assert_eq!(result(|| Ok(3)), 3);
    }
}
