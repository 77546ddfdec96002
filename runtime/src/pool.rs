//! A small thread pool that never allocates while it runs jobs.
//!
//! A job is a number of tasks and a function. Each worker (the caller is worker 0) has a share of the tasks that follow each other, takes them from the front, and
//! when none is left takes from the ends of the others' shares. So a worker has the same part of the rows in one kernel after another, and what it reads is most
//! likely what it wrote: cores need not share a cache. Helpers spin for a moment after a job, then sleep. A helper that wakes too late finds the gate closed and
//! goes back to sleep: nobody waits for it.
//!
//! ```text
//! gate   [ CLOSED | number of helpers inside ]      run: open -> work -> close -> wait until empty
//! ```

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a helper looks for the next job before it sleeps. A training step starts its next kernel within a few microseconds.
const SPIN: Duration = Duration::from_micros(30);
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A fixed number of workers, the caller among them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Counts jobs, so that helpers see a new one.
    epoch: AtomicU64,
    gate: AtomicUsize,
    /// Is a job being run? Whoever sets it is the only one to write `job` and to open and close the gate.
    busy: AtomicBool,
    job: UnsafeCell<Job>,
    /// What is left of each worker's share.
    shares: Box<[Share]>,
    /// Helpers asleep, under the lock that the condition variable needs.
    sleeping: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
struct Job {
    /// The closure, its lifetime erased: `run` does not return before all workers have left it.
    call: *const (dyn Fn(usize, usize) + Sync),
}

/// Tasks that follow each other: the first in the lower half of the word, the one behind the last in the upper half. On a cache line of its own.
#[repr(align(64))]
struct Share(AtomicU64);

impl Share {
    fn set(&self, tasks: Range<usize>) {
        let [first, end] = [tasks.start, tasks.end].map(|task| task as u64);
        self.0.store(first | (end << 32), Ordering::Relaxed);
    }

    fn take(&self, at: End) -> Option<usize> {
        let step = |share: u64| {
            let (first, end) = (share & u64::from(u32::MAX), share >> 32);
            (first < end).then(|| match at {
                End::Front => (first + 1) | (end << 32),
                End::Back => first | ((end - 1) << 32),
            })
        };
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok()?;
        Some(match at {
            End::Front => (taken & u64::from(u32::MAX)) as usize,
            End::Back => (taken >> 32) as usize - 1,
        })
    }
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

// SAFETY: `job` is written only by whoever has taken `busy`, while the gate is closed and empty, and read only by those inside; everything else is atomic or
// locked.
unsafe impl Sync for Shared {}
// SAFETY: as above; the closure behind the pointer is `Sync`.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of so many workers, at least 1: the caller and `workers - 1` threads.
    ///
    /// # Errors
    /// When the system has no more threads; those that were started have ended then.
    pub fn new(workers: usize) -> io::Result<Pool> {
        let idle: &'static (dyn Fn(usize, usize) + Sync) = &|_, _| {};
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            gate: AtomicUsize::new(CLOSED),
            busy: AtomicBool::new(false),
            job: UnsafeCell::new(Job { call: idle }),
            shares: (0..workers.max(1)).map(|_| Share(AtomicU64::new(0))).collect(),
            sleeping: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, helpers: vec![] };
        for worker in 1..workers.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("forebay-{worker}"));
            pool.helpers.push(builder.spawn(move || shared.help(worker))?);
        }
        Ok(pool)
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `call(task, worker)` once for each `task` in `0..tasks`, in no order, on all workers; returns when all calls have. `worker` is below
    /// [`Pool::workers`], and no two calls run on one worker at once. Each worker begins with a share of the tasks that follow each other. A pool runs
    /// one job at a time: a call must not use its own pool.
    ///
    /// # Panics
    /// When a call panics; the other tasks may then not have run. When there are 2³² tasks or more.
    pub fn run(&self, tasks: usize, call: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.helpers.is_empty() {
            return (0..tasks).for_each(|task| call(task, 0));
        }
        assert!(u32::try_from(tasks).is_ok(), "{tasks} tasks");
        let shared = &*self.shared;
        assert!(!shared.busy.swap(true, Ordering::Acquire), "a pool runs one job at a time");
        // SAFETY: only the lifetime changes: the closure is not called after `close`, and this function does not return before that.
        let call: *const (dyn Fn(usize, usize) + Sync + 'static) = unsafe { std::mem::transmute(call) };
        let job = Job { call };
        // SAFETY: `busy` was ours to take, so nobody else writes the job; `close` has left the gate closed and empty, so nobody reads it.
        unsafe { *shared.job.get() = job };
        let workers = self.workers();
        // Where there are fewer tasks than workers, the caller, who is awake, has one.
        let edge = |worker: usize| (tasks * worker).div_ceil(workers);
        for (worker, share) in shared.shares.iter().enumerate() {
            share.set(edge(worker)..edge(worker + 1));
        }
        shared.gate.store(0, Ordering::Release);
        // Sequentially consistent with `sleep`: either the helper sees the new epoch, or we see that it sleeps.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        shared.work(job, 0);
        shared.close();
        shared.busy.store(false, Ordering::Release);
        let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Like [`Pool::run`] over `0..items`, cut into runs of at least `grain` items: `call(first, end, worker)`. For work whose
    /// results do not depend on the cut.
    pub fn run_ranges(&self, items: usize, grain: usize, call: &(dyn Fn(usize, usize, usize) + Sync)) {
        // A few tasks for each worker even out what disturbs one of them.
        let most = if self.helpers.is_empty() { 1 } else { self.workers() * 6 };
        let tasks = (items / grain.max(1)).clamp(1, most);
        if items > 0 {
            self.run(tasks, &|task, worker| call(items * task / tasks, items * (task + 1) / tasks, worker));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// A helper's life.
    fn help(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter() {
                // SAFETY: inside the gate the job does not change, and its closure lives.
                let job = unsafe { *self.job.get() };
                self.work(job, worker);
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Waits for an epoch other than `seen`.
    fn next_epoch(&self, seen: u64) -> u64 {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let epoch = self.epoch.load(Ordering::Acquire);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                return self.sleep(seen);
            }
        }
    }

    fn sleep(&self, seen: u64) -> u64 {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let epoch = loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                break epoch;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        epoch
    }

    /// Goes through the gate, if it is open.
    fn enter(&self) -> bool {
        let step = |gate| if gate & CLOSED == 0 { Some(gate + 1) } else { None };
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, step).is_ok()
    }

    /// Closes the gate and waits until nobody is inside.
    fn close(&self) {
        self.gate.fetch_or(CLOSED, Ordering::AcqRel);
        let mut turns = 0u32;
        while self.gate.load(Ordering::Acquire) != CLOSED {
            turns += 1;
            if turns.is_multiple_of(4096) {
                // The helper may have lost its core to someone else.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// The next task for a worker: of its own share, else of the next worker's that has one.
    fn task(&self, worker: usize) -> Option<usize> {
        let (before, own) = self.shares.split_at(worker);
        let (own, behind) = own.split_first()?;
        own.take(End::Front).or_else(|| behind.iter().chain(before).find_map(|share| share.take(End::Back)))
    }

    fn work(&self, job: Job, worker: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            while let Some(task) = self.task(worker) {
                // SAFETY: `run` keeps the closure alive until the gate is closed and empty.
                unsafe { (*job.call)(task, worker) };
            }
        }));
        if let Err(payload) = result {
            self.shares.iter().for_each(|share| share.set(0..0));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for workers in 1..=4 {
            let pool = Pool::new(workers).expect("threads");
            assert_eq!(pool.workers(), workers);
            for tasks in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(worker < workers);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// Workers begin where their shares do, and do what others do not come to.
    #[test]
    fn shares_follow_each_other_and_are_taken_over() {
        let pool = Pool::new(3).expect("threads");
        let doers: Vec<AtomicUsize> = (0..12).map(|_| AtomicUsize::new(usize::MAX)).collect();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(12, &|task, worker| {
            let wait_until = |ready: &dyn Fn() -> bool| {
                while !ready() {
                    std::thread::yield_now();
                }
            };
            doers[task].store(worker, Ordering::Relaxed);
            if begun.fetch_add(1, Ordering::SeqCst) < 3 {
                // A task of each worker.
                wait_until(&|| begun.load(Ordering::SeqCst) >= 3);
            }
            if task == 4 {
                // All others: also what is left of this worker's share.
                wait_until(&|| done.load(Ordering::SeqCst) == 11);
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        let doers: Vec<usize> = doers.iter().map(|doer| doer.load(Ordering::Relaxed)).collect();
        assert_eq!([doers[0], doers[4], doers[8]], [0, 1, 2], "{doers:?}");
        assert!(doers[5..8].iter().all(|&doer| doer != 1), "{doers:?}");
    }

    #[test]
    fn sleeping_helpers_wake() {
        let pool = Pool::new(3).expect("threads");
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            while round % 500 == 0 && pool.shared.sleeping.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            pool.run(5, &|task, _| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.load(Ordering::Relaxed), 2000 * 10);
    }

    #[test]
    fn panics_come_back_and_the_pool_lives_on() {
        let pool = Pool::new(2).expect("threads");
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|task, _| assert!(task != 40, "task forty"));
            }));
            let payload = result.expect_err("a task panicked");
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"task forty"));
        }
        let count = AtomicUsize::new(0);
        pool.run(10, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn ranges_cover_everything() {
        let pool = Pool::new(2).expect("threads");
        for (items, grain) in [(0, 1), (1, 1), (7, 3), (1000, 1), (1000, 999), (5, 100)] {
            let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.run_ranges(items, grain, &|first, end, _| {
                for count in &counts[first..end] {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    /// A second caller is refused while a job runs, and neither job is lost.
    #[test]
    fn one_job_at_a_time() {
        let pool = Pool::new(2).expect("threads");
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let ran = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.run(2, &|_, _| {
                    begun.store(true, Ordering::SeqCst);
                    while !done.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    ran.fetch_add(1, Ordering::SeqCst);
                });
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let second = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|_, _| ())));
            done.store(true, Ordering::SeqCst);
            assert!(second.is_err(), "two jobs at once");
        });
        assert_eq!(ran.load(Ordering::SeqCst), 2);
        pool.run(2, &|_, _| _ = ran.fetch_add(1, Ordering::SeqCst));
        assert_eq!(ran.load(Ordering::SeqCst), 4, "it goes on afterwards");
    }
}
