//! Runs a controller's script (`lives`) once for each write and each way in which that write can fail, and compares the
//! result with a run without faults. Independent of kinds.
//!
//! A life with a fault ends soon after it: with one more step, and the deletion. At the end of each step the children and
//! the status are those of the undisturbed life (without identities and times), no more pods were made than in it (after an
//! edit of a pod template by hand, at most four more), and,
//! once the fault has occurred, nothing is written for two seconds; at the end of the life nothing is left. Lives are
//! played side by side, each in a namespace of its own with a proxy and a process of the controller.
//!
//! Not covered: nodes (a controller with `--namespace` reads none), and what the Events of Kubernetes say.

mod life;
mod mode;
mod proxy;
mod world;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use api::controllers::Controller;
use futures::{StreamExt as _, stream};
use local_cluster::{ClusterSpec, NodePool, sibling_binary};
use tokio::sync::Mutex;

use crate::{fresh_name, lives::Step, start, table::life_of, tools, workspace};
use life::{Reference, Setup, Slot, any, play_undisturbed, play_with, rights};
use world::{Pods, World, difference};

pub use mode::{Fault, Mode};

/// Most of a life is waiting, so that many fit on two cores.
pub const SIDE_BY_SIDE: usize = 24;
/// Room for every pod of every life.
const GPUS_OF_A_NODE: u32 = 64;

/// Which faults are played.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Of these modes, and of this write or of all.
    All { modes: Vec<Mode>, write: Option<usize> },
    /// So many, spread over modes and writes; always the same ones.
    Spread(usize),
}

/// One life with a fault.
#[derive(Debug)]
pub struct Outcome {
    pub fault: Fault,
    pub took: Duration,
    /// What was wrong with it.
    pub problem: Option<String>,
    /// The life had fewer writes than the number of the fault: it was undisturbed.
    pub missed: bool,
}

/// What a sweep has found.
#[derive(Debug)]
pub struct Report {
    pub controller: &'static str,
    /// Of an undisturbed life.
    pub writes: usize,
    pub outcomes: Vec<Outcome>,
    pub took: Duration,
}

/// Plays the lives of this controller, in a cluster of its own.
pub async fn sweep(controller: &'static Controller, choice: &Choice) -> Result<Report, String> {
    let began = Instant::now();
    let nodes = NodePool { gpus: GPUS_OF_A_NODE, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), nodes)).await;
    let life = life_of(controller);
    let overlay = workspace().join("deploy").join(controller.name).join("overlays/namespaced");
    let setup = Setup {
        cluster: &cluster,
        life: &life,
        program: sibling_binary(controller.name).map_err(|error| error.to_string())?,
        launcher: sibling_binary("local-cluster").map_err(|error| error.to_string())?,
        rights: rights(&cluster.kubectl(), &overlay)?,
        pods: Pods::follow(cluster.client().await.map_err(|error| error.to_string())?),
    };
    let reference = reference(&setup).await?;
    let faults = choice.faults(reference.writes);
    let free_slots = Mutex::new(Vec::new());
    let mut playing = stream::iter(faults)
        .map(|fault| outcome(&setup, &free_slots, fault, &reference))
        .buffer_unordered(SIDE_BY_SIDE);
    let mut outcomes = Vec::new();
    while let Some(outcome) = playing.next().await {
        // A whole sweep takes minutes: a failure is printed as soon as it is known.
        if let Some(problem) = outcome.explained(controller.name) {
            println!("{problem}");
        }
        outcomes.push(outcome);
    }
    drop(playing);
    outcomes.sort_by_key(|outcome| outcome.fault);
    Ok(Report { controller: controller.name, writes: reference.writes, outcomes, took: began.elapsed() })
}

/// What two undisturbed lives agree on.
async fn reference(setup: &Setup<'_>) -> Result<Reference, String> {
    let one = async || {
        let slot = Slot::new(setup).await?;
        let lived = play_undisturbed(setup, &slot).await?;
        let (writes, counts) = (lived.sent.writes.len(), lived.sent.counts());
        let collections = any(lived.sent.collections, slot.namespace()).collect();
        Ok::<_, String>(Reference { steps: lived.steps, collections, writes, counts })
    };
    let (first, second) = futures::try_join!(one(), one())?;
    let steps = setup.life.steps();
    let of_edit = steps.iter().position(|step| *step == Step::Edited).filter(|_| setup.life.edits_pods());
    agreed(first, &second, of_edit)
}

/// What both say, with nothing left at the end: a life with a fault is compared with it. `of_edit`: the step in which pods are
/// edited by hand. How many are made for that depends on the machine.
fn agreed(mut first: Reference, second: &Reference, of_edit: Option<usize>) -> Result<Reference, String> {
    for (step, ((first, made), (second, made_again))) in first.steps.iter_mut().zip(&second.steps).enumerate()
    {
        let differs = difference(first, second);
        let more = if of_edit.is_some_and(|edit| step >= edit) { life::MORE_PODS_OF_AN_EDIT } else { 0 };
        if !differs.is_empty() || made.abs_diff(*made_again) > more {
            return Err(format!(
                "two undisturbed lives differ in step {step} ({made} and {made_again} pods):\n{differs}"
            ));
        }
        *made = (*made).min(*made_again);
    }
    let left = first.steps.last().map(|(world, _)| difference(&World::new(), world)).unwrap_or_default();
    if !left.is_empty() {
        return Err(format!("after the deletion of an undisturbed life there is still:\n{left}"));
    }
    let counts = first.counts.max(second.counts);
    Ok(Reference { writes: first.writes.max(second.writes), counts, ..first })
}

async fn outcome<'a>(
    setup: &Setup<'a>,
    free_slots: &Mutex<Vec<Slot<'a>>>,
    fault: Fault,
    reference: &Reference,
) -> Outcome {
    let began = Instant::now();
    let free = free_slots.lock().await.pop();
    let lived = async {
        let slot = match free {
            Some(slot) => slot,
            None => Slot::new(setup).await?,
        };
        let lived = play_with(setup, &slot, fault, reference).await?;
        // A namespace in which a life has failed is not used again.
        free_slots.lock().await.push(slot);
        Ok(lived.sent.writes.len() < fault.write)
    };
    let lived: Result<bool, String> = lived.await;
    let missed = matches!(lived, Ok(true));
    Outcome { fault, took: began.elapsed(), problem: lived.err(), missed }
}

impl Choice {
    /// In the order in which they are played.
    fn faults(&self, writes: usize) -> Vec<Fault> {
        match self {
            Self::All { modes, write } => {
                let all = modes.iter().flat_map(|&mode| (1..=writes).map(move |write| Fault { mode, write }));
                let all = all.filter(|fault| write.is_none_or(|write| write == fault.write));
                all.collect()
            }
            Self::Spread(count) => {
                let modes = Mode::ALL.len();
                let spread = (0..*count).map(|number| {
                    let write = 1 + number * writes / count;
                    Fault { mode: Mode::ALL[number % modes], write }
                });
                spread.collect()
            }
        }
    }
}

impl Outcome {
    /// The problem, and how to see it again.
    fn explained(&self, controller: &str) -> Option<String> {
        let problem = self.problem.as_ref()?;
        let Fault { mode, write } = self.fault;
        let fault = self.fault;
        Some(format!(
            "{mode} at write {write}: {problem}\nto repeat it: cargo xtask sweep {controller} {fault}\n"
        ))
    }
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.problem.is_none())
    }

    /// Modes and how their lives went.
    pub fn table(&self) -> String {
        let mut table =
            format!("{:<16} {:>5} {:>5} {:>7} {:>7}\n", "mode", "lives", "same", "failed", "seconds");
        for mode in Mode::ALL {
            let of_mode: Vec<&Outcome> =
                self.outcomes.iter().filter(|outcome| outcome.fault.mode == mode).collect();
            if of_mode.is_empty() {
                continue;
            }
            let failed = of_mode.iter().filter(|outcome| outcome.problem.is_some()).count();
            let seconds = of_mode.iter().map(|outcome| outcome.took.as_secs_f64()).sum::<f64>();
            let (lives, mean) = (of_mode.len(), seconds / of_mode.len() as f64);
            let _ = writeln!(table, "{mode:<16} {lives:>5} {:>5} {failed:>7} {mean:>7.1}", lives - failed);
        }
        let (lives, missed) = (self.outcomes.len(), self.outcomes.iter().filter(|one| one.missed).count());
        let _ = writeln!(
            table,
            "{}: {} writes, {lives} lives ({missed} with fewer writes than their fault's), {:.0} s",
            self.controller,
            self.writes,
            self.took.as_secs_f64()
        );
        table.push_str("not covered: nodes (--namespace reads none), Events\n");
        table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_undisturbed_life_that_leaves_anything_behind_is_no_reference() {
        let ending_with = |world: World| Reference { steps: vec![(world, 1)], ..Reference::default() };
        assert!(agreed(ending_with(World::new()), &ending_with(World::new()), None).is_ok());
        let left = || ending_with(World::from([("services/chat".to_owned(), json!({}))]));
        let refused = agreed(left(), &left(), None).unwrap_err();
        assert!(refused.contains("services/chat"), "{refused}");
    }

    #[test]
    fn two_undisturbed_lives_may_differ_in_the_pods_that_an_edit_by_hand_costs() {
        let lived = |made: [usize; 2]| {
            let steps = made.map(|made| (World::new(), made)).to_vec();
            Reference { steps, ..Reference::default() }
        };
        let agreed = |first, second, of_edit| agreed(lived(first), &lived(second), of_edit);
        assert_eq!(agreed([2, 8], [2, 6], Some(1)).unwrap().steps[1].1, 6);
        assert!(agreed([2, 8], [2, 6], None).is_err());
        assert!(agreed([3, 8], [2, 8], Some(1)).unwrap_err().contains("in step 0"));
        assert!(agreed([2, 11], [2, 6], Some(1)).is_err());
    }

    #[test]
    fn a_sample_has_every_mode_and_writes_of_the_whole_life() {
        let faults = Choice::Spread(18).faults(40);
        let modes: BTreeSet<Mode> = faults.iter().map(|fault| fault.mode).collect();
        assert_eq!((faults.len(), modes.len()), (18, Mode::ALL.len()));
        assert!(faults.iter().any(|fault| fault.write == 1));
        assert!(faults.iter().any(|fault| fault.write > 36) && faults.iter().all(|fault| fault.write <= 40));
        assert_eq!(faults, Choice::Spread(18).faults(40));
    }

    #[test]
    fn the_whole_has_every_mode_of_every_write() {
        let all = Choice::All { modes: Mode::ALL.to_vec(), write: None };
        assert_eq!(all.faults(40).len(), 40 * Mode::ALL.len());
        let one = Choice::All { modes: vec![Mode::Killed], write: Some(7) };
        assert_eq!(one.faults(40), [Fault { mode: Mode::Killed, write: 7 }]);
    }
}
