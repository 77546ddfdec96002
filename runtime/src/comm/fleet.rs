//! For tests: the ranks of a plan as one process has them, and as several, which are threads of the test and talk over loopback.

use super::tcp::{Joining, Network};
use crate::data::Batch;
use crate::exec::{ExecError, ExecOptions, Executor};
use forebay_plan::{Plan, Tensor};
use std::net::TcpListener;
use std::time::Duration;

/// Who runs ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One process, in shared memory.
    Threads,
    /// So many processes, over TCP; ranks as even as they go.
    Processes(u32),
}

/// Ranks in shared memory, one in each process, and what lies between.
pub fn ways(ranks: u32) -> Vec<Way> {
    let mut ways = vec![Way::Threads, Way::Processes(ranks), Way::Processes(ranks.div_ceil(2))];
    ways.dedup();
    ways
}

/// All processes of a run.
pub struct Fleet<'p> {
    pub executors: Vec<Executor<'p>>,
}

impl<'p> Fleet<'p> {
    pub fn new(plan: &'p Plan, way: Way, options: ExecOptions) -> Fleet<'p> {
        let count = super::ranks(&plan.mesh) as u32;
        let executors = match way {
            Way::Threads => vec![Executor::new(plan, &options).unwrap_or_else(|error| panic!("{error}"))],
            Way::Processes(n) => {
                let ranks: Vec<u32> = (0..n).map(|p| count / n + u32::from(p < count % n)).collect();
                joined(plan, &ranks, options)
            }
        };
        Fleet { executors }
    }

    /// Does something in all processes at the same time.
    pub fn each<T: Send>(&mut self, job: impl Fn(&mut Executor<'p>) -> T + Sync) -> Vec<T> {
        let job = &job;
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.executors.iter_mut().map(|e| scope.spawn(move || job(e))).collect();
            threads.into_iter().map(|t| t.join().expect("it does not panic")).collect()
        })
    }

    /// Runs a step.
    pub fn run(&mut self) -> Vec<Result<(), ExecError>> {
        self.each(|executor| {
            let id = executor.phase_named("train")?;
            executor.start(id, &Batch::new(1, 1), 1)?;
            executor.commit(id, 1)
        })
    }

    /// Runs a step that ends well.
    pub fn runs(&mut self) {
        self.run().into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("{error}")));
    }

    fn named(&self, name: &str) -> &'p Tensor {
        self.executors[0].tensors().into_iter().find(|t| t.name == name).expect("the plan has it")
    }

    pub fn set(&mut self, name: &str, bytes: &[u8]) {
        let tensor = self.named(name);
        self.executors
            .iter_mut()
            .for_each(|executor| executor.set_whole(tensor, bytes).expect("ranks of this process"));
    }

    /// All of a tensor, which is the same for all.
    pub fn get(&mut self, name: &str) -> Vec<u8> {
        let tensor = self.named(name);
        let mut all = self.each(|executor| executor.whole(tensor).expect("all are well").into_owned());
        let first = all.pop().expect("there are processes");
        assert!(all.iter().all(|other| *other == first), "{name}");
        first
    }
}

/// As processes do, they end at the same time: each waits a moment for the others to close their connections.
impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        std::thread::scope(|scope| self.executors.drain(..).for_each(|executor| drop(scope.spawn(|| drop(executor)))));
    }
}

/// Processes with so many ranks each.
fn joined<'p>(plan: &'p Plan, ranks: &[u32], options: ExecOptions) -> Vec<Executor<'p>> {
    let listeners: Vec<TcpListener> =
        ranks.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("an address").to_string();
    let rendezvous = address(&listeners[0]);
    let join = |(process, listener): (u32, TcpListener)| {
        let joining = Joining {
            process,
            ranks,
            address: address(&listener),
            listener,
            rendezvous: rendezvous.clone(),
            facts: &[("plan", 1)],
            limit: Duration::from_secs(20),
            hopeless: &mut || None,
        };
        let network = Network::join(plan, joining, options.stall).unwrap_or_else(|error| panic!("{error}"));
        Executor::joined(plan, &options, network).unwrap_or_else(|error| panic!("{error}"))
    };
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = (0..).zip(listeners).map(|one| scope.spawn(move || join(one))).collect();
        threads.into_iter().map(|t| t.join().expect("it does not panic")).collect()
    })
}
