//! The Services of a pool: `<name>` sends tasks to ready workers, and the headless `<name>-workers` has the address of each
//! worker. Pure.
//!
//! Nothing else of the pool depends on them: a Service that is refused is reported, and the workers run all the same.

use std::time::Duration;

use api::conditions::SERVICE_OMITTED;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use runtime::write::{conditions::Verdict, refusal::Refusal};

use super::{
    metadata::{metadata, selector},
    omission::{self, TRIED_AGAIN_AFTER},
};
use crate::{names, observe::Observed, validate::ValidDispatcher};

/// Port of the Service for tasks, whatever port the workers listen on.
const TASKS: i32 = 8080;
const PORT_NAME: &str = "http";
/// Of the worker's container: a worker of an older revision gets tasks at its own port, or none.
pub(super) const TASK_PORT_NAME: &str = "tasks";

/// The Services to write and to delete, and why the pool has none.
#[derive(Debug, Default)]
pub(super) struct Serving {
    pub(super) services: Vec<Service>,
    /// With uid and version as preconditions.
    pub(super) deletions: Vec<Service>,
    /// Present only while a Service is refused.
    pub(super) omitted: Option<Verdict>,
    pub(super) facts: Vec<String>,
    pub(super) requeue_after: Option<Duration>,
}

impl Serving {
    /// Nothing is written.
    pub(super) fn as_it_is(observed: &Observed) -> Self {
        Self { omitted: reported(observed), ..Self::default() }
    }
}

pub(super) fn serving(valid: &ValidDispatcher, observed: &Observed, now: Timestamp) -> Serving {
    let services = valid.task_port.map(|port| services(valid, port)).unwrap_or_default();
    let is_wanted = |known: &ObjectMeta| services.iter().any(|service| service.metadata.name == known.name);
    let deletions: Vec<Service> = observed
        .services
        .iter()
        .filter(|known| known.deletion_timestamp.is_none() && !is_wanted(known))
        .map(|known| Service { metadata: known.clone(), ..Service::default() })
        .collect();
    if services.is_empty() && deletions.is_empty() {
        return Serving::default();
    }
    let reported = reported(observed);
    let tried = format!("tried to write the Services in minute {}", now.as_second() / 60);
    if reported.is_some() && observed.facts.contains_key(&tried) {
        let requeue_after = Some(TRIED_AGAIN_AFTER);
        return Serving { omitted: reported, facts: vec![tried], requeue_after, ..Serving::default() };
    }
    let facts = reported.map(|_| tried).into_iter().collect();
    Serving { services, deletions, omitted: None, facts, requeue_after: None }
}

/// What the last status has. The Services stay while the spec is invalid, paused or refused.
pub(super) fn reported(observed: &Observed) -> Option<Verdict> {
    omission::reported(SERVICE_OMITTED, observed)
}

/// What is reported of a Service whose write was refused. `None`: it passes soon.
pub(super) fn refused(refusal: &Refusal) -> Option<Verdict> {
    omission::refused(SERVICE_OMITTED, refusal, "the workers run without this Service")
}

/// What is reported of a Service whose deletion was refused.
pub(super) fn kept(refusal: &Refusal) -> Option<Verdict> {
    omission::refused(SERVICE_OMITTED, refusal, "the Service stays, and still sends tasks to the workers")
}

fn services(valid: &ValidDispatcher, port: u16) -> Vec<Service> {
    let tasks = ServiceSpec { ports: Some(vec![service_port(TASKS)]), ..ServiceSpec::default() };
    let workers = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        // A busy worker may be too slow to be ready, and still has its sessions.
        publish_not_ready_addresses: Some(true),
        ports: Some(vec![service_port(i32::from(port))]),
        ..ServiceSpec::default()
    };
    [(names::service(&valid.name), tasks), (names::workers_service(&valid.name), workers)]
        .into_iter()
        .map(|(name, spec)| Service {
            metadata: metadata(&valid.namespace, &valid.owner, name),
            spec: Some(ServiceSpec { selector: Some(selector(&valid.name)), ..spec }),
            ..Service::default()
        })
        .collect()
}

fn service_port(port: i32) -> ServicePort {
    ServicePort {
        name: Some(PORT_NAME.to_owned()),
        port,
        target_port: Some(IntOrString::String(TASK_PORT_NAME.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}

/// Host and port at which a worker finds the others. Without the namespace, so that equal specs have equal templates in every
/// namespace.
pub(super) fn peers(valid: &ValidDispatcher, port: u16) -> String {
    format!("{}:{port}", names::workers_service(&valid.name))
}

#[cfg(test)]
mod tests {
    use api::{conditions, reasons};
    use k8s_openapi::api::core::v1::Service;
    use runtime::write::refusal::Refusal;
    use serde_json::{Value, json};

    use crate::{
        plan::{Plan, outcome::Outcome},
        tests::{Scene, at},
    };

    const SERVED: &str = "{role: coder, service: {port: 9000}}";

    fn names(services: &[Service]) -> Vec<&str> {
        services.iter().filter_map(|service| service.metadata.name.as_deref()).collect()
    }

    fn omitted(plan: &Plan) -> Option<(&str, &str)> {
        let mut conditions = plan.status.conditions.iter();
        let known = conditions.find(|known| known.type_ == conditions::SERVICE_OMITTED)?;
        Some((&known.reason, &known.message))
    }

    /// As the API server has the Services of this plan.
    fn write(scene: &mut Scene, plan: &Plan) {
        let written = plan.services.iter().map(|service| service.metadata.clone()).collect();
        scene.observe(|observed| observed.services = written);
    }

    fn refused(scene: &Scene, plan: Plan, refusal: &Refusal) -> Plan {
        let mut outcome = plan.if_unchanged();
        outcome.report_refused_service(refusal, &scene.observed().dispatcher, at(0));
        let Outcome { status, events, requeue_after, .. } = outcome;
        let (status, events) = (status.into_owned(), events.into_owned());
        Plan { status, events, requeue_after, ..plan }
    }

    #[test]
    fn tasks_go_to_ready_workers_and_each_worker_has_an_address() {
        let plan = Scene::ready(SERVED, 1).plan();
        assert_eq!(names(&plan.services), ["coder", "coder-workers"]);
        let spec = |index: usize| serde_json::to_value(plan.services[index].spec.clone().unwrap()).unwrap();
        assert_eq!(
            spec(0)["ports"][0],
            json!({"name": "http", "port": 8080, "protocol": "TCP", "targetPort": "tasks"})
        );
        assert_eq!((&spec(0)["clusterIP"], &spec(1)["clusterIP"]), (&Value::Null, &json!("None")));
        assert_eq!(
            (&spec(1)["ports"][0]["port"], &spec(1)["publishNotReadyAddresses"]),
            (&json!(9000), &json!(true))
        );
        assert_eq!(spec(0)["selector"], spec(1)["selector"]);
        let environment = &plan.deployment.as_ref().unwrap().spec["template"]["spec"]["containers"][0]["env"];
        let value = |name: &str| {
            let mut all = environment.as_array().unwrap().iter();
            all.find(|variable| variable["name"] == name).unwrap().clone()
        };
        assert_eq!(value("AGENT_PORT")["value"], "9000");
        assert_eq!(value("AGENT_GRACE_SECONDS")["value"], "25");
        assert_eq!(value("AGENT_PEERS")["value"], "coder-workers:9000");
        assert_eq!(value("POD_IP")["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    }

    #[test]
    fn without_the_field_there_are_none_and_those_of_before_are_deleted() {
        let mut scene = Scene::ready(SERVED, 1);
        let plan = scene.plan();
        write(&mut scene, &plan);
        assert!(scene.plan().deletions.is_empty());
        scene.edit_spec(|spec| spec.service = None);
        let plan = scene.plan();
        assert_eq!((plan.services.len(), names(&plan.deletions)), (0, vec!["coder", "coder-workers"]));
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert!(scene.plan().deletions.is_empty(), "a pause changes nothing");
        assert!(Scene::ready("{role: coder}", 1).plan().services.is_empty());
    }

    #[test]
    fn a_service_that_is_refused_is_reported_and_the_workers_run() {
        let mut scene = Scene::ready(SERVED, 1);
        let conflict = Refusal::OwnershipConflict("Service demo/coder belongs to another owner".to_owned());
        let plan = refused(&scene, scene.plan(), &conflict);
        let (reason, message) = omitted(&plan).unwrap();
        assert_eq!(reason, reasons::OWNERSHIP_CONFLICT);
        assert!(
            message.starts_with("Service demo/coder belongs to another owner; the workers run"),
            "{message}"
        );
        assert_eq!(plan.events.len(), 1);
        assert!(plan.deployment.is_some() && plan.requeue_after <= Some(super::TRIED_AGAIN_AFTER));
        scene.observe(|observed| {
            std::sync::Arc::make_mut(&mut observed.dispatcher).status = Some(plan.status.clone());
        });
        let again = scene.plan();
        assert_eq!(names(&again.services).len(), 2, "it is tried once in each minute");
        scene.note(&again, at(0));
        let waits = scene.plan();
        assert_eq!((waits.services.len(), omitted(&waits).unwrap().0), (0, reasons::OWNERSHIP_CONFLICT));
        assert!(refused(&scene, waits, &conflict).events.is_empty(), "it is no news");
        scene.edit_spec(|spec| spec.service = None);
        assert_eq!(omitted(&scene.plan()), None);
    }
}
