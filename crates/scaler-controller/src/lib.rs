//! Controller of AIScaler: reads measured values and sets the replicas of a target through its scale subresource.
//!
//! ```text
//!  Prometheus, pods, agents,
//!  Secrets, other scales ─ collect ▶ samples ─┐ wakes
//!  AIScaler, targets, pods ──────── caches ───┴▶ observe → validate → plan → apply ─▶ scale of the target
//!  HPAs, ScaledObjects                            caches    pure      pure    I/O  ─▶ status, events
//! ```
//!
//! `collect` reads the sources of each object at its own times. It reads metrics agents also when an agent sends.
//! `observe` reads only caches and samples. The crate `scaling` has the arithmetic.
//!
//! **Invariant:** a missing value is a fault and never zero, except the latency of an engine that reports no request. A
//! query reads no series of another namespace. Every answer is bounded in bytes and in time, and no redirect is
//! followed. A Secret is read by its name and never listed, and no message contains a token. Writes of another manager
//! are answered at most three times within five minutes.
//!
//! Files, beside those of every controller (`reconcile.rs`, `observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`,
//! `metrics.rs`):
//!
//! - `configuration.rs`: the options.
//! - `target.rs`: what can be scaled, and which object where one owns the other.
//! - `history.rs`: what is remembered of a target, and what the status keeps of it for a restart.
//! - `samples.rs`: what this process knows of each object: the last answers, and what became of the last writes.
//! - `sources.rs`: what a source gives: a sample, or the fault that explains its absence.
//! - `collect.rs`: reads the sources of one object.
//!
//! Files of `validate` and `plan`:
//!
//! - `validate/validities.rs`: which AIScalers are valid.
//! - `plan/hands_off.rs`: why nothing is scaled.
//! - `plan/permission.rs`: whether the replicas may be written now.
//! - `plan/status.rs`, `plan/conditions.rs`, `plan/events.rs`: what a user reads.
//! - `plan/metric.rs`: the numbers of a metric in it.
//!
//! Files of `target`:
//!
//! - `selector.rs`, `pod.rs`: the pods that the selector of a target matches.
//! - `owners.rs`: which of these pods are the target's.
//! - `other_kinds.rs`: targets of kinds that are not watched.
//! - `contender.rs`: other autoscalers of a target.
//!
//! Files of `history`:
//!
//! - `contest.rs`: others that write the replicas of a target.
//! - `first_look.rs`: announces a first value whose unit must be wrong.
//! - `attempt.rs`: a write of replicas whose answer was lost.
//!
//! Files of `samples` and `collect`:
//!
//! - `samples/trend.rs`: finds counters that were meant as gauges.
//! - `collect/scrape.rs`: one scrape of a page of the pods of a target, and what follows from it.
//! - `collect/rates.rs`: shares scrapes between objects that read the same metric of the same target.
//! - `collect/arrivals.rs`: what arrives at targets whose queues a server knows.
//! - `collect/agents.rs`: where the metrics agents are, and which AIScalers a snapshot concerns.
//!
//! Files of `sources`:
//!
//! - `pods.rs`: scrapes one pod.
//! - `pods/scrapes.rs`: turns successive scrapes into rates and percentiles.
//! - `pods/kept.rs`: bounds the bytes of scrapes, in all and for each namespace.
//! - `engines.rs`: the table of what engines call their load.
//! - `agents.rs`: judges what metrics agents report about the GPUs of pods.
//! - `answer.rs`: judges what was read of servers and pods.

#![forbid(unsafe_code)]

use std::sync::Arc;

use api::{aidispatcher::AIDispatcher, aiinference::AIInference, aiscaler::AIScaler, labels};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, StatefulSet},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use runtime::{
    clock::Clock,
    controller::{Controller, Next},
    key::Key,
    polling::Trigger,
    process::{Identity, Process, Started, args::RuntimeArgs},
    watch::{cache::Cache, relations::Referrers},
    write::{
        apply::{ApplyError, Writer},
        events::Recorder,
        scale::Scales,
    },
};

use crate::{
    collect::{
        agents::{self, Agents},
        arrivals::Arrivals,
        rates::Rates,
    },
    configuration::{Configuration, ScalerArgs},
    metrics::Counts,
    samples::Samples,
    sources::pods::Bodies,
    target::{
        Reference, Scalable,
        contender::{HpaView, ScaledObjectView},
        other_kinds::Resources,
        pod::PodView,
        selector::PodsByLabel,
    },
    validate::validities::Validities,
};

mod apply;
mod collect;
pub mod configuration;
mod history;
mod metrics;
mod observe;
mod plan;
mod reconcile;
mod samples;
pub mod sources;
mod target;
#[cfg(test)]
mod tests;
mod validate;

/// Field manager and name of the Lease.
pub const NAME: &str = "scaler-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub scaler: ScalerArgs,
}

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) scalers: Cache<AIScaler>,
    pub(crate) deployments: Cache<Scalable<Deployment>>,
    pub(crate) stateful_sets: Cache<Scalable<StatefulSet>>,
    pub(crate) inferences: Cache<Scalable<AIInference>>,
    pub(crate) dispatchers: Cache<Scalable<AIDispatcher>>,
    pub(crate) hpas: Cache<HpaView>,
    pub(crate) scaled_objects: Cache<ScaledObjectView>,
    pub(crate) pods: Cache<PodView>,
    pub(crate) pods_by_label: PodsByLabel,
    /// By `Reference::key` of their targets.
    pub(crate) scaler_targets: Referrers,
    pub(crate) hpa_targets: Referrers,
    pub(crate) scaled_object_targets: Referrers,
    pub(crate) validities: Validities,
    pub(crate) samples: Samples,
    pub(crate) rates: Rates,
    pub(crate) arrivals: Arrivals,
    pub(crate) bodies: Bodies,
    /// Of targets whose kinds are not watched.
    pub(crate) resources: Resources,
    pub(crate) agents: Agents,
    pub(crate) counts: Counts,
    pub(crate) configuration: Configuration,
    pub(crate) clock: Clock,
    pub(crate) writer: Writer,
    pub(crate) scales: Scales,
    pub(crate) recorder: Recorder,
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: ScalerArgs) -> Started {
    let ctx = Arc::new(Context::watching(process, args));
    forget_deleted(&ctx);
    metrics::export(process, &ctx.scalers, &ctx.counts);
    let controller = process.controller(&ctx.scalers);
    let controller = following_targets(controller, &ctx);
    let controller = following_autoscalers(controller, &ctx);
    let controller = reading_sources(controller, &ctx);
    process.control(controller, move |scaler, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&ctx, scaler, now).await }
    })
}

/// Observes, validates, plans, applies.
async fn reconcile(ctx: &Context, scaler: Arc<AIScaler>, now: Timestamp) -> Result<Next, ApplyError> {
    let _forget = ForgetIfDeleted { ctx, scaler: &scaler };
    runtime::reconcile::reconcile(ctx, Arc::clone(&scaler), now).await
}

impl Context {
    fn watching(process: &mut Process, args: ScalerArgs) -> Self {
        let scalers = process.watch("AIScaler");
        let pods = process.watch("Pod");
        let hpas = process.watch("HorizontalPodAutoscaler");
        let scaled_objects = process.watch_if_served("ScaledObject");
        Self {
            deployments: process.watch("Deployment"),
            stateful_sets: process.watch("StatefulSet"),
            inferences: process.watch_if_served("AIInference"),
            dispatchers: process.watch_if_served("AIDispatcher"),
            pods_by_label: PodsByLabel::of(&pods),
            pods,
            scaler_targets: targets_of_scalers(&scalers),
            hpa_targets: targets_of_hpas(&hpas),
            hpas,
            scaled_object_targets: targets_of_scaled_objects(&scaled_objects),
            scaled_objects,
            validities: Validities::default(),
            samples: Samples::default(),
            rates: Rates::default(),
            arrivals: Arrivals::default(),
            bodies: Bodies::new(collect::BODIES_AT_ONCE, collect::BODIES_OF_ONE_NAMESPACE),
            resources: Resources::default(),
            agents: Agents::new(process, &args.agents),
            counts: Counts::default(),
            configuration: Configuration::new(args, process.secrets()),
            clock: process.clock(),
            writer: process.writer(&scalers),
            scales: process.scales(),
            recorder: process.recorder(),
            scalers,
        }
    }

    /// The AIScalers of a target. `beside`: of an object in its namespace.
    fn scalers_of(&self, target: Option<&Reference>, beside: &ObjectMeta) -> Vec<Key> {
        target.map(|target| self.scaler_targets.of_key(&target.key(beside))).unwrap_or_default()
    }

    fn forget(&self, key: &Key, uid: &str) {
        self.forget_uid(uid);
        self.agents.forget(key);
    }

    fn forget_uid(&self, uid: &str) {
        self.validities.forget(uid);
        self.samples.forget(uid);
        self.rates.forget(uid);
        self.arrivals.forget(uid);
    }
}

fn targets_of_scalers(scalers: &Cache<AIScaler>) -> Referrers {
    Referrers::of(scalers, |scaler| Some(Reference::of(&scaler.spec).key(&scaler.metadata)))
}

fn targets_of_hpas(hpas: &Cache<HpaView>) -> Referrers {
    Referrers::of(hpas, |hpa| hpa.target.as_ref().map(|target| target.key(&hpa.metadata)))
}

fn targets_of_scaled_objects(scaled_objects: &Cache<ScaledObjectView>) -> Referrers {
    Referrers::of(scaled_objects, |object| object.target.as_ref().map(|target| target.key(&object.metadata)))
}

fn following_targets(controller: Controller<AIScaler>, ctx: &Arc<Context>) -> Controller<AIScaler> {
    controller
        .maps(&ctx.deployments, keys_of_target(ctx))
        .maps(&ctx.stateful_sets, keys_of_target(ctx))
        .maps(&ctx.inferences, keys_of_target(ctx))
        .maps(&ctx.dispatchers, keys_of_target(ctx))
}

/// Those that scale the same targets.
fn following_autoscalers(controller: Controller<AIScaler>, ctx: &Arc<Context>) -> Controller<AIScaler> {
    let (of_hpa, of_scaled_object) = (Arc::clone(ctx), Arc::clone(ctx));
    controller
        .maps(&ctx.hpas, move |hpa| of_hpa.scalers_of(hpa.target.as_ref(), &hpa.metadata))
        .maps(&ctx.scaled_objects, move |object| {
            of_scaled_object.scalers_of(object.target.as_ref(), &object.metadata)
        })
}

fn reading_sources(controller: Controller<AIScaler>, ctx: &Arc<Context>) -> Controller<AIScaler> {
    let (polled, polled_for_arrivals, polled_by_agents) = (Arc::clone(ctx), Arc::clone(ctx), Arc::clone(ctx));
    let (period, sources) = (ctx.configuration.sample_period, ctx.agents.sources.clone());
    controller
        .polls(collect::polling(period), &Trigger::default(), move |scaler, now| {
            let ctx = Arc::clone(&polled);
            async move { collect::read(&ctx, &scaler, now).await }
        })
        .polls(collect::polling(collect::arrivals_period(period)), &Trigger::default(), move |scaler, now| {
            let ctx = Arc::clone(&polled_for_arrivals);
            async move { collect::read_arrivals(&ctx, &scaler, now).await }
        })
        .polls(agents::polling(period), &ctx.agents.trigger, move |scaler, now| {
            let ctx = Arc::clone(&polled_by_agents);
            async move { collect::read_agents(&ctx, &scaler, now).await }
        })
        .beside(move |_, stop| agents::run(sources, stop))
}

/// The AIScalers of a target, and of what it owns: where the owner is scaled, they follow the owner.
fn keys_of_target<K>(ctx: &Arc<Context>) -> impl Fn(&Scalable<K>) -> Vec<Key> + Send + Sync + 'static
where
    K: kube::Resource<DynamicType = ()> + 'static,
{
    let ctx = Arc::clone(ctx);
    move |object| {
        let metadata = &object.metadata;
        let reference = Reference {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            name: metadata.name.clone().unwrap_or_default(),
        };
        let mut keys = ctx.scalers_of(Some(&reference), metadata);
        if let Some(uid) = &metadata.uid {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            for child in observe::deployments_of(&ctx, namespace, reference.watched(), uid) {
                keys.extend(ctx.scalers_of(Some(&child), metadata));
            }
        }
        keys
    }
}

/// Held while something is recorded about an object. When dropped, removes all records if the object was deleted
/// meanwhile; [`forget_deleted`] has been called before.
pub(crate) struct ForgetIfDeleted<'c> {
    pub(crate) ctx: &'c Context,
    pub(crate) scaler: &'c AIScaler,
}

impl Drop for ForgetIfDeleted<'_> {
    fn drop(&mut self) {
        let Self { ctx, scaler } = self;
        let key = Key::of(*scaler);
        let uid = scaler.metadata.uid.as_deref();
        match ctx.scalers.get(&key) {
            None => ctx.forget(&key, uid.unwrap_or_default()),
            // The nodes that are kept by name are those of the new object, or will be with its first poll.
            Some(known) if known.metadata.uid.as_deref() != uid => ctx.forget_uid(uid.unwrap_or_default()),
            Some(_) => {}
        }
    }
}

/// What is kept of an object goes with it.
fn forget_deleted(ctx: &Arc<Context>) {
    let kept = Arc::downgrade(ctx);
    ctx.scalers.subscribe(move |change| {
        let gone = change.gone().and_then(|gone| gone.metadata.uid.as_deref());
        if let (Some(uid), Some(ctx)) = (gone, kept.upgrade()) {
            ctx.forget(change.key, uid);
        }
    });
}
