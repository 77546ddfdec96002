//! Work on several things at once.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// Bytes of a thread's stack, as of a main thread's: models may be deep.
const STACK: usize = 8 << 20;

/// Does something for each of some things, on so many threads at the most; results are in their order.
pub fn each<T: Sync, R: Send>(things: &[T], threads: usize, of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    each_until(things, threads, of, |_| false)
}

/// The same, but when `enough` is true of a result nothing more is begun. Things are begun in their order: those without a result come behind all that have one.
pub fn each_until<T: Sync, R: Send>(
    things: &[T],
    threads: usize,
    of: impl Fn(&T) -> R + Sync,
    enough: impl Fn(&R) -> bool + Sync,
) -> Vec<R> {
    let (next, is_enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut done = vec![];
        while !is_enough.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(thing) = things.get(number) else { break };
            let result = of(thing);
            if enough(&result) {
                is_enough.store(true, Ordering::Relaxed);
            }
            done.push((number, result));
        }
        done
    };
    let mut all: Vec<(usize, R)> = scope(|scope| {
        // Where there can be no more threads, those that there are do it.
        let begin = |_| Builder::new().stack_size(STACK).spawn_scoped(scope, work).ok();
        let workers: Vec<_> = (1..threads).filter_map(begin).collect();
        let own = work();
        let others = workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|panic| resume_unwind(panic)));
        others.chain(own).collect()
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Whoever is done first, results are in the order of things, there is one of each before the last, and what comes well behind the one that was enough is not begun.
    #[test]
    fn the_first_things_are_done_in_their_order() {
        let things: Vec<u64> = (0..200).collect();
        for threads in [0, 1, 2, 8] {
            let found = AtomicUsize::new(0);
            // Those behind are done sooner.
            let of = |n: &u64| {
                std::thread::sleep(Duration::from_millis(3 * (4 - n % 4)));
                *n
            };
            let third_odd = |n: &u64| n % 2 == 1 && found.fetch_add(1, Ordering::Relaxed) == 2;
            let results = each_until(&things, threads, of, third_odd);
            assert_eq!(results, things[..results.len()], "{threads} threads");
            // Each thread has one thing when the third is found, and may have found one behind it.
            let most = if threads < 2 { 6 } else { 2 * (3 + threads) };
            assert!((6..=most).contains(&results.len()), "{} were begun by {threads} threads", results.len());
            assert_eq!(each(&things[..9], threads, of), things[..9]);
        }
    }
}
