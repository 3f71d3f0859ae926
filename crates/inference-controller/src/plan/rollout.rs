//! Which pods go first when a revision changes: the new one comes before an old one goes, or, on full GPUs, after.

use std::time::Duration;

use api::aiinference::Rollout;
use jiff::Timestamp;

use super::resolved::is_rendered_from;
use crate::{
    observe::{Observed, PodView},
    validate::ValidInference,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The new pod is ready before an old one goes.
    Surge,
    /// One old pod goes first.
    Replace,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) strategy: Strategy,
    pub(super) look_again: Option<Duration>,
}

/// A node that is being added, or a pod that is just going, frees a GPU sooner than that.
const GIVE_UP_SURGING_AFTER: Duration = Duration::from_secs(60);

pub(super) fn rollout(valid: &ValidInference, observed: &Observed, now: Timestamp) -> Decision {
    let settled = |strategy| Decision { strategy, look_again: None };
    match valid.rollout {
        Rollout::Surge => settled(Strategy::Surge),
        Rollout::Replace => settled(Strategy::Replace),
        Rollout::Auto => {
            let rolling = observed
                .deployment
                .as_ref()
                .filter(|deployment| is_rendered_from(deployment, valid) && !observed.others.is_empty());
            let Some(deployment) = rolling else { return settled(Strategy::Surge) };
            // Once given up, surging stays given up until the rollout ends, or the two would take turns.
            if deployment.replaces {
                return settled(Strategy::Replace);
            }
            match stuck_since(observed) {
                None => settled(Strategy::Surge),
                Some(since) => {
                    // A clock that is ahead of ours has not waited for less than nothing.
                    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                    match GIVE_UP_SURGING_AFTER.checked_sub(waited).filter(|left| !left.is_zero()) {
                        None => settled(Strategy::Replace),
                        look_again => Decision { strategy: Strategy::Surge, look_again },
                    }
                }
            }
        }
    }
}

/// Since when a pod of the new revision has found no node.
fn stuck_since(observed: &Observed) -> Option<Timestamp> {
    let waiting = |pod: &PodView| {
        let scheduled = pod.scheduled.as_ref().filter(|scheduled| scheduled.status == "False")?;
        scheduled.last_transition_time
    };
    observed.current.iter().flatten().filter_map(|pod| waiting(pod)).min()
}

#[cfg(test)]
mod tests {
    use crate::{
        tests::{Scene, at},
        validate::validate,
    };

    use super::*;

    impl Scene {
        fn rolls_by(&mut self, strategy: Strategy) {
            self.observe(|observed| {
                observed.deployment.as_mut().unwrap().replaces = strategy == Strategy::Replace;
            });
        }
    }

    /// A rollout with one pod of each revision; the new one has found no node for so many seconds.
    fn decision(rollout: &str, stuck_for: i64, so_far: Strategy) -> Decision {
        let mut scene = Scene::ready(1);
        scene.edit_spec(|spec| spec.rollout = serde_json::from_value(rollout.into()).unwrap());
        scene.older_pods(1);
        scene.rolls_by(so_far);
        scene.pods(&[&format!(
            "{{phase: Pending, conditions: [{{type: PodScheduled, status: 'False', reason: Unschedulable, \
             lastTransitionTime: '{}'}}]}}",
            at(-stuck_for)
        )]);
        let observed = scene.observed();
        super::rollout(&validate(&observed.model).unwrap(), &observed, at(0))
    }

    #[test]
    fn auto_surges_until_a_pod_has_found_no_node_for_a_minute() {
        let waits =
            |seconds| Decision { strategy: Strategy::Surge, look_again: Some(Duration::from_secs(seconds)) };
        assert_eq!(decision("Auto", 0, Strategy::Surge), waits(60));
        assert_eq!(decision("Auto", 59, Strategy::Surge), waits(1));
        let replaces = Decision { strategy: Strategy::Replace, look_again: None };
        assert_eq!(decision("Auto", 60, Strategy::Surge), replaces);
        assert_eq!(decision("Auto", 600, Strategy::Surge), replaces);
    }

    #[test]
    fn auto_that_has_given_up_surging_replaces_until_the_rollout_ends() {
        assert_eq!(decision("Auto", 1, Strategy::Replace).strategy, Strategy::Replace);
        let mut done = Scene::ready(1);
        done.rolls_by(Strategy::Replace);
        let observed = done.observed();
        let decided = super::rollout(&validate(&observed.model).unwrap(), &observed, at(0));
        assert_eq!(decided.strategy, Strategy::Surge);
    }

    #[test]
    fn what_the_user_chose_does_not_wait() {
        assert_eq!(
            decision("Surge", 600, Strategy::Surge),
            Decision { strategy: Strategy::Surge, look_again: None }
        );
        assert_eq!(
            decision("Replace", 0, Strategy::Surge),
            Decision { strategy: Strategy::Replace, look_again: None }
        );
    }
}
