//! System calls, by seccomp: what is listed here is allowed, all else ends the process with SIGSYS.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use super::{Ports, Sandbox};

/// Allowed whatever their arguments.
const ALLOWED: &[&[c_long]] = &[
    // Frames and statistics, through what is open: files, TAPs, packet and unix sockets, eventfds; registers and I/O ports
    // of cards, in files of VFIO and sysfs.
    &[libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64],
    &[libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_sendmsg, libc::SYS_sendmmsg],
    // A capture file is rewound; a packet socket says whether its interface is still there.
    &[libc::SYS_lseek, libc::SYS_getsockname],
    &[libc::SYS_close, libc::SYS_shutdown],
    // Waiting.
    &[libc::SYS_poll, libc::SYS_ppoll, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_wait],
    &[libc::SYS_epoll_pwait, libc::SYS_futex],
    // Eventfds that another process holds too are signalled without waiting.
    &[libc::SYS_io_submit, libc::SYS_io_getevents],
    &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_sched_yield, libc::SYS_restart_syscall],
    // Where the vDSO has no clock.
    &[libc::SYS_clock_gettime, libc::SYS_gettimeofday],
    // Memory of the allocator, of threads' stacks, and of buffers that come with a connection.
    &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise],
    &[libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_eventfd2],
    // Threads begin, name the CPU they run on, and end.
    &[libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group],
    &[libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity, libc::SYS_gettid, libc::SYS_getpid],
    // Signals arrive, and an abort sends one to itself.
    &[libc::SYS_rt_sigreturn, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction],
    // Keys of hash maps.
    &[libc::SYS_getrandom],
    // What is known of an open file; by its name, metadata only.
    &[libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx],
];

/// What one argument must be: `argument & mask == value`, in 32 or 64 bits as the kernel takes it.
struct Check {
    call: c_long,
    argument: u8,
    len: SeccompCmpArgLen,
    mask: u64,
    value: u64,
}

const fn int(call: c_long, argument: u8, value: u64) -> Check {
    Check { call, argument, len: SeccompCmpArgLen::Dword, mask: u32::MAX as u64, value }
}

const fn long(call: c_long, argument: u8, mask: u64, value: u64) -> Check {
    Check { call, argument, len: SeccompCmpArgLen::Qword, mask, value }
}

const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
const WRITE: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) as u64;

/// Allowed if one of the call's lines holds.
fn checked() -> Vec<Check> {
    let (executable, own) = (libc::PROT_EXEC as u64, std::process::id().into());
    vec![
        // Threads, but no processes; and their names.
        long(libc::SYS_clone, 0, THREAD, THREAD),
        int(libc::SYS_prctl, 0, libc::PR_SET_NAME as u64),
        // An abort signals this process; no other.
        int(libc::SYS_tgkill, 0, own),
        // No memory that code could be written to.
        long(libc::SYS_mmap, 2, executable, 0),
        long(libc::SYS_mprotect, 2, executable, 0),
        // To the peer of a connected socket; no other address.
        long(libc::SYS_sendto, 4, u64::MAX, 0),
        // Drops that a packet socket has counted, and an error that would keep it readable.
        int(libc::SYS_getsockopt, 1, libc::SOL_PACKET as u64),
        int(libc::SYS_getsockopt, 1, libc::SOL_SOCKET as u64),
        // A capture file that is read again; memory that is to stay as it is; the standard library's look at a descriptor
        // before it closes it.
        int(libc::SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC as u64),
        int(libc::SYS_fcntl, 1, libc::F_ADD_SEALS as u64),
        // Whether a descriptor that a peer has sent is a file in memory.
        int(libc::SYS_fcntl, 1, libc::F_GET_SEALS as u64),
        int(libc::SYS_fcntl, 1, libc::F_GETFD as u64),
        // A panic looks for source lines. Landlock refuses it, where there is Landlock.
        Check { mask: WRITE, ..int(libc::SYS_openat, 2, libc::O_RDONLY as u64) },
        // Whether the output is a terminal; how a TAP's interface is called now; an interface's name and whether it is up.
        int(libc::SYS_ioctl, 1, libc::TCGETS),
        int(libc::SYS_ioctl, 1, libc::FIONBIO),
        int(libc::SYS_ioctl, 1, u64::from(libc::TUNGETIFF as u32)),
        int(libc::SYS_ioctl, 1, libc::SIOCGIFNAME),
        int(libc::SYS_ioctl, 1, libc::SIOCGIFFLAGS),
    ]
}

/// What a server of a socket has on top: clients, what kind of file they send.
const SERVER: &[c_long] = &[libc::SYS_accept4, libc::SYS_fstatfs];

/// What a connector has on top: a unix socket, connected to a place that is opened first.
const CONNECTOR: &[c_long] = &[libc::SYS_connect, libc::SYS_openat2];

fn connector() -> Vec<Check> {
    vec![int(libc::SYS_socket, 0, libc::AF_UNIX as u64)]
}

/// What sessions of vhost-user have on top of a server's.
fn sessions() -> Vec<Check> {
    // VFIO_IOMMU_MAP_DMA and UNMAP_DMA: a mapped card is given the memory of the guest that comes, and of no other.
    const IOMMU: [u64; 2] = [0x3b71, 0x3b72];
    IOMMU.map(|request| int(libc::SYS_ioctl, 1, request)).into()
}

/// What a port has on top that takes an interface again which was made anew: its number and address, a packet socket bound
/// to it (an address of 20 bytes) that receives all of its frames, a TAP's descriptor that has lost its interface.
/// Without capabilities, `TUNSETIFF` makes no interface.
fn rejoining() -> Vec<Check> {
    const TAP: [libc::Ioctl; 3] = [libc::TUNSETIFF, libc::TUNSETVNETHDRSZ, libc::TUNSETOFFLOAD];
    let mut checks: Vec<Check> = TAP.map(|request| int(libc::SYS_ioctl, 1, u64::from(request as u32))).into();
    checks.extend([libc::SIOCGIFINDEX, libc::SIOCGIFHWADDR].map(|request| int(libc::SYS_ioctl, 1, request)));
    checks.push(int(libc::SYS_bind, 2, size_of::<libc::sockaddr_ll>() as u64));
    checks.push(int(libc::SYS_setsockopt, 1, libc::SOL_PACKET as u64));
    checks
}

/// Answered as by a kernel that lacks them, which can be done without: the flags of a new thread lie in memory with
/// `clone3`, where no filter sees them, and glibc then takes `clone`; a panic does not find its source lines; the socket of
/// a server stays until the next one takes its place.
const MISSING: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_getcwd, libc::SYS_readlink, libc::SYS_readlinkat, libc::SYS_unlink];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(sandbox: Sandbox, ports: Ports) -> Result<Rules, BackendError> {
    let (more, mut more_checked): (&[&[c_long]], _) = match sandbox {
        Sandbox::Off | Sandbox::Packets => (&[], Vec::new()),
        Sandbox::Server => (&[SERVER], Vec::new()),
        Sandbox::Sessions => (&[SERVER], sessions()),
        Sandbox::Connector => (&[CONNECTOR], connector()),
    };
    if ports.rejoin {
        more_checked.extend(rejoining());
    }
    let plain = ALLOWED.iter().chain(more).copied().flatten().chain(MISSING);
    let mut rules: Rules = plain.map(|&call| (call, Vec::new())).collect();
    for Check { call, argument, len, mask, value } in checked().into_iter().chain(more_checked) {
        let condition = SeccompCondition::new(argument, len, SeccompCmpOp::MaskedEq(mask), value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

/// Installs two filters, of which the kernel takes the stricter answer.
pub fn restrict(sandbox: Sandbox, ports: Ports) -> Result<String, String> {
    let install = || -> Result<usize, seccompiler::Error> {
        let install = |rules, otherwise, listed| {
            let filter = SeccompFilter::new(rules, otherwise, listed, TargetArch::x86_64)?;
            apply_filter_all_threads(&BpfProgram::try_from(filter)?)
        };
        let missing = MISSING.iter().map(|&call| (call, Vec::new())).collect();
        let rules = rules(sandbox, ports)?;
        let count = rules.len() - MISSING.len();
        install(missing, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
        install(rules, SeccompAction::KillProcess, SeccompAction::Allow)?;
        Ok(count)
    };
    let count = install().map_err(|error| format!("seccomp: {error}"))?;
    Ok(format!("seccomp: {count} system calls are allowed; another one ends the process (SIGSYS)"))
}
