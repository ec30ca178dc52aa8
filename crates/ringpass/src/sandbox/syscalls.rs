//! System calls, restricted by seccomp: those listed here are allowed, all others end the process with SIGSYS.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use super::Sandbox;

/// System calls that are allowed with any arguments.
const ALLOWED: &[&[c_long]] = &[
    // Frames and statistics through open descriptors: files, TAPs, packet and Unix sockets, eventfds; registers
    // and I/O ports of cards through files of VFIO and sysfs.
    &[libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64],
    &[libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_sendmsg, libc::SYS_sendmmsg],
    // `lseek` rewinds a capture file; `getsockname` shows whether a packet socket's interface still exists.
    &[libc::SYS_lseek, libc::SYS_getsockname],
    &[libc::SYS_close, libc::SYS_shutdown],
    // Waiting.
    &[libc::SYS_poll, libc::SYS_ppoll, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_wait],
    &[libc::SYS_epoll_pwait, libc::SYS_futex],
    // Signals eventfds that another process also holds, without blocking.
    &[libc::SYS_io_submit, libc::SYS_io_getevents],
    &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_sched_yield, libc::SYS_restart_syscall],
    // Needed where the vDSO has no clock.
    &[libc::SYS_clock_gettime, libc::SYS_gettimeofday, libc::SYS_getrusage],
    // Memory of the allocator, of thread stacks, and of buffers that belong to a connection.
    &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise],
    &[libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_eventfd2],
    // Start and end of threads, and their CPU affinity.
    &[libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group],
    &[libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity, libc::SYS_gettid, libc::SYS_getpid],
    // Signal delivery; `abort` sends a signal to its own process.
    &[libc::SYS_rt_sigreturn, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction],
    // Keys of hash maps.
    &[libc::SYS_getrandom],
    // Metadata of open files; by name, metadata only.
    &[libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx],
];

/// A rule on one argument: `argument & mask == value`, compared as 32 or 64 bits as the kernel does.
struct ArgRule {
    call: c_long,
    argument: u8,
    len: SeccompCmpArgLen,
    mask: u64,
    value: u64,
}

const fn arg32(call: c_long, argument: u8, value: u64) -> ArgRule {
    ArgRule { call, argument, len: SeccompCmpArgLen::Dword, mask: u32::MAX as u64, value }
}

const fn arg64(call: c_long, argument: u8, mask: u64, value: u64) -> ArgRule {
    ArgRule { call, argument, len: SeccompCmpArgLen::Qword, mask, value }
}

const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
const WRITE: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) as u64;

/// Returns the calls that are allowed for certain arguments: one matching rule is enough.
fn arg_rules() -> Vec<ArgRule> {
    let (executable, own) = (libc::PROT_EXEC as u64, std::process::id().into());
    vec![
        // Threads, but no processes; their names, and how precisely they sleep.
        arg64(libc::SYS_clone, 0, THREAD, THREAD),
        arg32(libc::SYS_prctl, 0, libc::PR_SET_NAME as u64),
        arg32(libc::SYS_prctl, 0, libc::PR_SET_TIMERSLACK as u64),
        // `abort` signals this process. No other process may be signalled.
        arg32(libc::SYS_tgkill, 0, own),
        // No executable memory.
        arg64(libc::SYS_mmap, 2, executable, 0),
        arg64(libc::SYS_mprotect, 2, executable, 0),
        // Only to the peer of a connected socket: no destination address.
        arg64(libc::SYS_sendto, 4, u64::MAX, 0),
        // Drop counters of a packet or XDP socket, and a pending error that would keep it readable.
        arg32(libc::SYS_getsockopt, 1, libc::SOL_PACKET as u64),
        arg32(libc::SYS_getsockopt, 1, libc::SOL_XDP as u64),
        arg32(libc::SYS_getsockopt, 1, libc::SOL_SOCKET as u64),
        // Pairs of connected sockets, which reach nobody else: answers of the process that receives descriptors.
        arg32(libc::SYS_socketpair, 1, (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64),
        // Duplication of a capture file's descriptor, seals on memory files, and the standard library's check
        // of a descriptor before it closes it (`F_GETFD`).
        arg32(libc::SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC as u64),
        arg32(libc::SYS_fcntl, 1, libc::F_ADD_SEALS as u64),
        // Reads seals, which shows whether a descriptor sent by a peer is a memory file.
        arg32(libc::SYS_fcntl, 1, libc::F_GET_SEALS as u64),
        arg32(libc::SYS_fcntl, 1, libc::F_GETFD as u64),
        // A panic opens files to print source lines. Landlock denies that where it is available.
        ArgRule { mask: WRITE, ..arg32(libc::SYS_openat, 2, libc::O_RDONLY as u64) },
        // Whether the output is a terminal; non-blocking mode; the current name of a TAP's interface; an
        // interface's name, state and address.
        arg32(libc::SYS_ioctl, 1, libc::TCGETS),
        arg32(libc::SYS_ioctl, 1, libc::FIONBIO),
        arg32(libc::SYS_ioctl, 1, u64::from(libc::TUNGETIFF as u32)),
        arg32(libc::SYS_ioctl, 1, libc::SIOCGIFNAME),
        arg32(libc::SYS_ioctl, 1, libc::SIOCGIFFLAGS),
        arg32(libc::SYS_ioctl, 1, libc::SIOCGIFHWADDR),
    ]
}

/// Further calls of a server: accepting clients, and the file system type of the files that they send.
const SERVER: &[c_long] = &[libc::SYS_accept4, libc::SYS_fstatfs];

/// Further calls of a connector: a Unix socket, connected to a path that is opened first.
const CONNECTOR: &[c_long] = &[libc::SYS_connect, libc::SYS_openat2];

/// Further calls of the processes that receive descriptors: a queue for the check of eventfds, and the end of a
/// process.
const FD_RECEIVER: &[c_long] = &[libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_wait4];

/// Returns the further calls of the process that starts them: `fork`.
fn fd_receiver() -> Vec<ArgRule> {
    vec![arg64(libc::SYS_clone, 0, u64::MAX, 0)]
}

fn connector() -> Vec<ArgRule> {
    vec![arg32(libc::SYS_socket, 0, libc::AF_UNIX as u64)]
}

/// Returns the further calls of vhost-user sessions.
fn sessions() -> Vec<ArgRule> {
    // VFIO_IOMMU_MAP_DMA and VFIO_IOMMU_UNMAP_DMA: give a mapped card access to the memory of its guest, and to
    // no other.
    const IOMMU: [u64; 2] = [0x3b71, 0x3b72];
    IOMMU.map(|request| arg32(libc::SYS_ioctl, 1, request)).into()
}

/// Returns the further calls of a process that binds XDP sockets for others: the sockets (an address of 16 bytes), their umem, and their map
/// (`BPF_MAP_UPDATE_ELEM`, `BPF_MAP_DELETE_ELEM`); the interface's MTU, and its promiscuous mode.
fn xdp_server() -> Vec<ArgRule> {
    const MAP_UPDATE: u64 = 2;
    const MAP_DELETE: u64 = 3;
    vec![
        arg32(libc::SYS_socket, 0, libc::AF_XDP as u64),
        arg32(libc::SYS_setsockopt, 1, libc::SOL_XDP as u64),
        arg32(libc::SYS_setsockopt, 1, libc::SOL_PACKET as u64),
        arg32(libc::SYS_bind, 2, size_of::<libc::sockaddr_xdp>() as u64),
        arg32(libc::SYS_bpf, 0, MAP_UPDATE),
        arg32(libc::SYS_bpf, 0, MAP_DELETE),
        arg32(libc::SYS_ioctl, 1, libc::SIOCGIFMTU),
    ]
}

/// Returns the further calls of a port that rejoins an interface which was created again: the interface's index
/// and MAC address, a packet socket bound to it (an address of 20 bytes) that receives all of its frames, and a
/// TAP descriptor that has lost its interface. Without capabilities, `TUNSETIFF` creates no interface.
fn rejoining() -> Vec<ArgRule> {
    const TAP: [libc::Ioctl; 3] = [libc::TUNSETIFF, libc::TUNSETVNETHDRSZ, libc::TUNSETOFFLOAD];
    let mut checks: Vec<ArgRule> = TAP.map(|request| arg32(libc::SYS_ioctl, 1, u64::from(request as u32))).into();
    checks.push(arg32(libc::SYS_ioctl, 1, libc::SIOCGIFINDEX));
    checks.push(arg32(libc::SYS_bind, 2, size_of::<libc::sockaddr_ll>() as u64));
    checks.push(arg32(libc::SYS_setsockopt, 1, libc::SOL_PACKET as u64));
    checks
}

/// Calls answered with ENOSYS, as by a kernel that lacks them. The program works without them: `clone3` has its
/// flags in memory, which no filter can read, and glibc falls back to `clone`; a panic prints no source lines;
/// a server's socket file stays until the next server replaces it.
const ENOSYS_CALLS: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_getcwd, libc::SYS_readlink, libc::SYS_readlinkat, libc::SYS_unlink];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(sandbox: Sandbox, rejoin: bool) -> Result<Rules, BackendError> {
    let (more, mut more_checked): (&[&[c_long]], _) = match sandbox {
        Sandbox::Off | Sandbox::Packets => (&[], Vec::new()),
        Sandbox::Server => (&[SERVER], Vec::new()),
        Sandbox::Sessions => (&[SERVER], sessions()),
        Sandbox::XdpServer => (&[SERVER], xdp_server()),
        Sandbox::Connector => (&[CONNECTOR], connector()),
        Sandbox::FdReceiver => (&[FD_RECEIVER], fd_receiver()),
    };
    if rejoin {
        more_checked.extend(rejoining());
    }
    let plain = ALLOWED.iter().chain(more).copied().flatten().chain(ENOSYS_CALLS);
    let mut rules: Rules = plain.map(|&call| (call, Vec::new())).collect();
    for ArgRule { call, argument, len, mask, value } in arg_rules().into_iter().chain(more_checked) {
        let condition = SeccompCondition::new(argument, len, SeccompCmpOp::MaskedEq(mask), value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

/// Installs two filters; the kernel applies the stricter result of the two. With `rejoin`, ports may open an interface again that
/// was deleted and created again. Another call than those that are allowed ends the process (SIGSYS). Returns their number.
pub fn restrict(sandbox: Sandbox, rejoin: bool) -> Result<usize, String> {
    let install = || -> Result<usize, seccompiler::Error> {
        let install = |rules, otherwise, listed| {
            let filter = SeccompFilter::new(rules, otherwise, listed, TargetArch::x86_64)?;
            apply_filter_all_threads(&BpfProgram::try_from(filter)?)
        };
        let missing = ENOSYS_CALLS.iter().map(|&call| (call, Vec::new())).collect();
        let rules = rules(sandbox, rejoin)?;
        let count = rules.len() - ENOSYS_CALLS.len();
        install(missing, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
        install(rules, SeccompAction::KillProcess, SeccompAction::Allow)?;
        Ok(count)
    };
    install().map_err(|error| format!("seccomp: {error}"))
}
