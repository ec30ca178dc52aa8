//! The functions that the hooks replace: the next ones of these names in the search order, mostly the C
//! library's.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t,
    ssize_t, timespec,
};

/// Returns the function with this name, cached in `at`; null if there is none.
fn find(at: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = at.load(Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: `name` is NUL-terminated, as a `CStr`, and `RTLD_NEXT` is a valid handle of `dlsym`.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    at.store(found, Relaxed);
    found
}

pub fn set_errno(errno: c_int) {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's `errno`, which lives as long as the
    // thread and is accessed by no other.
    unsafe { *libc::__errno_location() = errno }
}

pub fn errno() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's `errno`, which lives as long as the
    // thread and is accessed by no other.
    unsafe { *libc::__errno_location() }
}

macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),* $(; $last:ident: $last_type:ty)?) -> $result:ty;)*) => {$(
        /// Calls the next function of this name.
        ///
        /// # Safety
        /// The contract of the C library's function of this name.
        pub unsafe fn $name($($argument: $type,)* $($last: $last_type)?) -> $result {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            type Function = next!(@type $result, $($type),* $(; $last_type)?);
            let found = find(&AT, const { match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            } });
            if found.is_null() {
                set_errno(libc::ENOSYS);
                return -1_isize as $result;
            }
            // SAFETY: `found` is not null, and is the address that `dlsym` has returned for this name; the C
            // library declares that function with the type `Function`.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller upholds the contract of the C library's function, by this function's contract.
            unsafe { function($($argument,)* $($last)?) }
        }
    )*};
    (@type $result:ty, $($type:ty),*) => { unsafe extern "C" fn($($type),*) -> $result };
    (@type $result:ty, $($type:ty),*; $last:ty) => { unsafe extern "C" fn($($type,)* ...) -> $result };
}

next! {
    open(path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    openat(folder: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    openat64(folder: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int; argument: c_long) -> c_int;
    fcntl64(fd: c_int, command: c_int; argument: c_long) -> c_int;
    ioctl(fd: c_int, request: c_ulong; argument: *mut c_void) -> c_int;
    mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, limit: c_int, bytes: size_t) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int;
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t, bytes: size_t) -> c_int;
    select(fds: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, limit: *mut libc::timeval) -> c_int;
    pselect(fds: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, limit: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, limit: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, limit: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, limit: *const timespec, mask: *const sigset_t) -> c_int;
}

/// Calls the next `closefrom`, which returns nothing.
///
/// # Safety
/// The contract of the C library's function of this name.
pub unsafe fn closefrom(first: c_int) {
    static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let found = find(&AT, c"closefrom");
    if !found.is_null() {
        // SAFETY: `found` is not null, and is the address that `dlsym` has returned for `closefrom`; the C
        // library declares that function with this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(found) };
        // SAFETY: the caller upholds the contract of the C library's `closefrom`, by this function's contract.
        unsafe { function(first) }
    }
}
