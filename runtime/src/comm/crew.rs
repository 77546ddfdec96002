//! The threads of ranks: one each, the caller's for the first. They sleep between jobs, and a job allocates nothing.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::{fmt, io};

/// So many members, the caller among them.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    start: Condvar,
    done: Condvar,
}

struct State {
    job: Option<Job>,
    /// Counts jobs.
    epoch: u64,
    /// Members that are not done with it.
    running: usize,
    stop: bool,
}

/// A function for each member; its lifetime is erased.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the function is `Sync`, and `run` does not return while anyone may call it.
unsafe impl Send for Job {}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Crew").field("members", &(self.threads.len() + 1)).finish()
    }
}

impl Crew {
    /// A crew of so many, at least 1.
    ///
    /// # Errors
    /// When the system has no more threads; those that were started have ended then.
    pub(crate) fn new(members: usize) -> io::Result<Crew> {
        let state = Mutex::new(State { job: None, epoch: 0, running: 0, stop: false });
        let shared = Arc::new(Shared { state, start: Condvar::new(), done: Condvar::new() });
        let mut crew = Crew { shared, threads: vec![] };
        for member in 1..members {
            let shared = Arc::clone(&crew.shared);
            let builder = std::thread::Builder::new().name(format!("forebay-rank-{member}"));
            crew.threads.push(builder.spawn(move || shared.serve(member))?);
        }
        Ok(crew)
    }

    /// Calls a function with each of the items at the same time, each on its own thread; as many items as members. It must not panic.
    pub(crate) fn run<T: Send>(&self, items: &mut [T], call: &(dyn Fn(&mut T) + Sync)) {
        /// The first item, for all threads.
        struct First<T>(*mut T);
        // SAFETY: each thread makes a reference to an item of its own.
        unsafe impl<T: Send> Sync for First<T> {}
        assert_eq!(items.len(), self.threads.len() + 1, "an item for each member");
        let first = First(items.as_mut_ptr());
        let one = |member: usize| {
            let first = &first;
            // SAFETY: members are numbered from 0, each once, below the number of items; `items` is borrowed until all are done.
            call(unsafe { &mut *first.0.add(member) });
        };
        let job: &(dyn Fn(usize) + Sync) = &one;
        // SAFETY: only the lifetime changes: this function waits until all members are done, and the job is forgotten then.
        let job: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(job) };
        {
            let mut state = self.shared.lock();
            assert!(state.job.is_none(), "a crew does one thing at a time");
            (state.job, state.running) = (Some(Job(job)), self.threads.len());
            state.epoch += 1;
            self.shared.start.notify_all();
        }
        // Whatever happens here, the others are waited for before the job's memory goes.
        let _done = Done(&self.shared);
        one(0);
    }
}

/// Waits for the other members when dropped.
struct Done<'a>(&'a Shared);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        while state.running > 0 {
            state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.job = None;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member's life.
    fn serve(&self, member: usize) {
        let mut seen = 0;
        loop {
            let mut state = self.lock();
            while state.epoch == seen && !state.stop {
                state = self.start.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(job) = state.job.filter(|_| !state.stop) else { return };
            seen = state.epoch;
            drop(state);
            // SAFETY: `run` keeps the function alive until `running` is 0.
            unsafe { (*job.0)(member) };
            let mut state = self.lock();
            state.running -= 1;
            if state.running == 0 {
                self.done.notify_all();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_its_item_at_the_same_time() {
        for members in 1..5 {
            let crew = Crew::new(members).expect("threads");
            let barrier = std::sync::Barrier::new(members);
            let mut items: Vec<usize> = (0..members).collect();
            for _ in 0..100 {
                crew.run(&mut items, &|item| {
                    barrier.wait();
                    *item += 10;
                });
            }
            assert!(items.iter().enumerate().all(|(i, item)| *item == i + 1000));
        }
    }
}
