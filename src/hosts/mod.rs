//! `--hosts`: the ranks of a run in several processes.

mod children;
mod file;

use crate::failure::Failure;
use crate::say::say;
use children::Children;
use clap::Args;
use file::HostsFile;
use forebay_plan::Plan;
use forebay_runtime::comm::ranks;
use forebay_runtime::comm::tcp::{Fact, Joining, Lookout, Network};
use forebay_runtime::exec::ExecError;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

/// Where ranks run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Several processes")]
pub struct HostArgs {
    /// Run the ranks in several processes, which talk over TCP: local:N starts N of them on this machine; a file has an address and a number of ranks on each
    /// line, and the same command is started on each of these hosts with its --host-index
    #[arg(long, value_name = "local:N|FILE", value_parser = hosts)]
    hosts: Option<Hosts>,
    /// Which line of the hosts file this process is, counted from 0; the first one prints and saves
    #[arg(long, value_name = "I", requires = "hosts")]
    host_index: Option<u32>,
    /// Wait so long for the other processes to come
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400), requires = "hosts")]
    join_timeout: u64,
    /// Where process 0 is: for processes that it starts
    #[arg(long, hide = true, requires = "host_index")]
    rendezvous: Option<String>,
}

#[derive(Clone, Debug)]
enum Hosts {
    Local(u32),
    File(PathBuf),
}

fn hosts(text: &str) -> Result<Hosts, String> {
    match text.strip_prefix("local:").map(str::parse) {
        None => Ok(Hosts::File(text.into())),
        Some(Ok(processes)) if processes > 0 => Ok(Hosts::Local(processes)),
        Some(_) => Err("local: is followed by a number of processes, at least 1".into()),
    }
}

/// This process among those of a run.
#[derive(Debug)]
pub struct Place {
    process: u32,
    /// Of each process.
    ranks: Vec<u32>,
    listener: TcpListener,
    address: String,
    rendezvous: String,
    limit: Duration,
    /// All processes are on this machine.
    local: bool,
}

impl HostArgs {
    /// Were several processes asked for?
    pub fn is_given(&self) -> bool {
        self.hosts.is_some()
    }

    /// What is read, for messages, and from which file.
    pub fn reads(&self) -> Option<(&'static str, PathBuf)> {
        match &self.hosts {
            Some(Hosts::File(path)) => Some(("--hosts", path.clone())),
            Some(Hosts::Local(_)) | None => None,
        }
    }

    /// A process that another one has started ends with it, from here on.
    pub fn end_with_parent(&self) {
        if self.rendezvous.is_some() {
            children::end_with_parent();
        }
    }

    /// Where this process is, if there are several, which run the ranks of a plan together.
    pub fn place(&self, plan: &Plan) -> Result<Option<Place>, Failure> {
        if self.hosts.is_none() {
            return Ok(None);
        }
        forebay_plan::verify(plan).map_err(ExecError::Invalid)?;
        let ranks = u32::try_from(ranks(&plan.mesh)).unwrap_or(u32::MAX);
        let limit = Duration::from_secs(self.join_timeout);
        let listen = |address: &str| {
            TcpListener::bind(address)
                .map_err(|error| Failure::Input(format!("this process cannot be reached at {address}: {error}")))
        };
        match (&self.hosts, self.host_index, &self.rendezvous) {
            (None, ..) => Ok(None),
            (Some(Hosts::Local(processes)), index, rendezvous) => {
                if index.is_some() != rendezvous.is_some() {
                    return Err(Failure::Usage("--host-index goes with a hosts file, not with local:N".into()));
                }
                let n = *processes;
                if n > ranks {
                    return Err(Failure::Input(format!(
                        "--hosts local:{n} wants more processes than the plan has ranks, which is {ranks}\n  = help: use local:{ranks}, or a --strategy with more ranks: dp × cp × tp × pp"
                    )));
                }
                let listener = listen("127.0.0.1:0")?;
                let address = listener.local_addr()?.to_string();
                let rendezvous = rendezvous.clone().unwrap_or_else(|| address.clone());
                let ranks = (0..n).map(|p| ranks / n + u32::from(p < ranks % n)).collect();
                let process = index.unwrap_or(0);
                Ok(Some(Place { process, ranks, listener, address, rendezvous, limit, local: true }))
            }
            (Some(Hosts::File(path)), index, _) => {
                let file = HostsFile::read(path)?;
                file.fits(ranks)?;
                let hosts = &file.hosts;
                let range = format!("0 to {}, counted from the first host of the file", hosts.len() - 1);
                let Some(process) = index else {
                    return Err(Failure::Usage(format!("--host-index says which host this is: {range}")));
                };
                let Some(own) = hosts.get(process as usize) else {
                    return Err(Failure::Usage(format!("--host-index {process} is none of the hosts: {range}")));
                };
                Ok(Some(Place {
                    process,
                    ranks: hosts.iter().map(|host| host.ranks).collect(),
                    listener: listen(&own.address)?,
                    address: own.address.clone(),
                    rendezvous: hosts[0].address.clone(),
                    limit,
                    local: false,
                }))
            }
        }
    }
}

impl Place {
    /// How many threads this process uses when `wanted` (all that the machine has when 0) are shared out to all ranks of the machine.
    pub fn threads(&self, wanted: usize) -> usize {
        if !self.local {
            return wanted;
        }
        let all = if wanted == 0 { std::thread::available_parallelism().map_or(1, |n| n.get()) } else { wanted };
        let (own, ranks) = (self.ranks[self.process as usize] as usize, self.ranks.iter().sum::<u32>() as usize);
        (all * own / ranks).max(1)
    }

    /// A number for who runs how many ranks, which must be the same for all.
    pub fn layout(&self) -> u64 {
        let bytes: Vec<u8> = self.ranks.iter().flat_map(|ranks| ranks.to_le_bytes()).collect();
        forebay_runtime::hash::Hasher::of(&bytes)
    }

    /// Starts the other processes of this machine, if that is for this one to do, and waits for all.
    pub fn join(self, plan: &Plan, facts: &[Fact], stall: Duration) -> Result<(Network, Crowd), Failure> {
        let mut children = Children::default();
        if self.local && self.process == 0 {
            children = Children::start(self.ranks.len() as u32, &self.address)?;
        }
        let joining = Joining {
            process: self.process,
            ranks: &self.ranks,
            listener: self.listener,
            address: self.address,
            rendezvous: self.rendezvous,
            facts,
            limit: self.limit,
            hopeless: &mut || children.ended(),
        };
        let network = Network::join(plan, joining, stall)?;
        Ok((network, Crowd { children }))
    }
}

/// How long a run that has failed may go on in this process.
const GRACE: Duration = Duration::from_secs(30);

/// Ends this process when the run has failed and a rank here goes on nevertheless.
pub fn end_after_failure(lookout: Lookout) {
    std::thread::spawn(move || {
        while lookout.goes_on() {
            if let Some(why) = lookout.failure() {
                std::thread::sleep(GRACE);
                if lookout.goes_on() {
                    say!("error: {why}\n  = note: a rank of this process does not stop; the process ends without it");
                    std::process::exit(1);
                }
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

/// The processes that this one has started.
#[derive(Debug, Default)]
pub struct Crowd {
    children: Children,
}

impl Crowd {
    /// A failure, and what happened to processes that could not say it themselves.
    pub fn explain(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Input(message) => {
                let notes = self.children.fallen().into_iter().map(|note| format!("\n  = note: {note}"));
                Failure::Input(message + &notes.collect::<String>())
            }
            other => other,
        }
    }
}
