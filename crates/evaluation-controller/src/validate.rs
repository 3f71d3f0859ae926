//! From a spec to types that cannot be wrong, or to the condition that says what to correct. Pure.

use std::sync::Arc;

use api::{
    aiinference::{
        evaluation::{ENDPOINT, Harness, ModelEvaluation, RUNNING_SERVER, TestSet},
        source::{Hub, InvalidSource, ModelSource},
    },
    launcher::evaluator::limits::{Question, Refusal, refusal},
    pods::Resources,
    reasons,
};
use comparison::{Budget, Confidence, Minimum, Rules};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference};
use kube::Resource;
use text::quantity::is_less;
use workload::digest::digest;

use crate::{Settings, names::Side};

pub(crate) use library::Library;

mod library;

/// A spec whose names are known.
#[derive(Clone, Debug)]
pub(crate) struct ValidEvaluation {
    pub(crate) evaluation: Arc<ModelEvaluation>,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) owner: OwnerReference,
    pub(crate) baseline: Model,
    pub(crate) candidate: Model,
    /// At least one.
    pub(crate) sets: Vec<ValidSet>,
    pub(crate) confidence: Confidence,
}

/// What a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// An AIInference that runs.
    Served { inference: String },
    /// An OpenAI API of others.
    Endpoint {
        url: String,
        /// `None`: the only one there.
        model: Option<String>,
    },
    /// Weights.
    Source(ModelSource),
    /// What a TrainingJob writes.
    Output { path: String },
}

/// A test set.
#[derive(Clone, Debug)]
pub(crate) struct ValidSet {
    pub(crate) name: String,
    /// Its name in files.
    pub(crate) file: String,
    pub(crate) harness: Harness,
    /// The image with the harness.
    pub(crate) image: String,
    pub(crate) dataset: String,
    pub(crate) questions: Questions,
    pub(crate) subsets: Vec<String>,
    pub(crate) limit: Option<i32>,
    pub(crate) metric: Option<String>,
    pub(crate) rules: Rules,
}

/// Where the files of a test set are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Questions {
    /// In this folder of the image.
    Image(String),
    Claim {
        claim: String,
        path: Option<String>,
    },
    /// The harness loads them from a hub.
    Online,
}

/// Why a spec cannot be used. The message names the field and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Invalid {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    pub(crate) fn of_spec(message: String) -> Self {
        Self::new(reasons::INVALID_SPEC, message)
    }

    pub(crate) fn of_field(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(reasons::INVALID_SPEC, format!("{field}: {why}"))
    }
}

/// Names of the seeds of this project, and what the harnesses call them.
const ALIASES: [(&str, &str); 2] = [("mmlu-zh", "cmmlu"), ("mmlu-en", "mmlu")];
/// Where an image has test sets.
const IMAGE_FOLDER: &str = "/datasets";
/// The longest name of a file that the runner takes.
const LONGEST_FILE: usize = 63;

pub(crate) fn validate(
    evaluation: &Arc<ModelEvaluation>,
    settings: &Settings,
) -> Result<ValidEvaluation, Invalid> {
    let (spec, meta) = (&evaluation.spec, &evaluation.metadata);
    // An administrator who takes a permission back ends no run that has begun.
    let has_begun = evaluation
        .status
        .as_ref()
        .is_some_and(|status| status.start_time.is_some() || !status.runs.is_empty());
    let model = |side: Side| {
        let text = match side {
            Side::Baseline => &spec.baseline_model,
            Side::Candidate => &spec.candidate_model,
        };
        model(text, side.field(), settings, has_begun)
    };
    let (baseline, candidate) = (model(Side::Baseline)?, model(Side::Candidate)?);
    if let (Model::Endpoint { url: one, .. }, Model::Endpoint { url: other, .. }) = (&baseline, &candidate)
        && spec.api_key_secret_name.is_some()
        && origin(one) != origin(other)
    {
        let message = "the key of one server is not sent to another; evaluate two models of one server, or leave it out";
        return Err(Invalid::of_field("spec.apiKeySecretName", message));
    }
    let confidence =
        Confidence::parse(&spec.confidence).map_err(|why| Invalid::of_field("spec.confidence", why))?;
    let account = spec.pods.service_account_name.as_deref();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    settings.own_account.is_not_used_by(namespace, account).map_err(|_| {
        let why =
            "this is the service account of the controller; create the evaluation again with another one";
        Invalid::of_field("spec.serviceAccountName", why)
    })?;
    let amounts = [
        ("spec.resources", &spec.resources),
        ("spec.server.resources", &spec.server.resources),
        ("spec.helperResources", &spec.pods.helper_resources),
    ];
    for (field, resources) in amounts.into_iter().filter(|_| !has_begun) {
        requests_are_within_limits(field, resources.as_ref())?;
    }
    if spec.allow_online && !settings.allow_online && !has_begun {
        let message = "spec.allowOnline: the controller does not allow test sets from hubs; start it with --allow-online, or set \
                       testSets[].claimName";
        return Err(Invalid::new(reasons::DATASET_ONLINE_FORBIDDEN, message));
    }
    if spec.allow_code_execution && !settings.allow_code_execution && !has_begun {
        let message = "spec.allowCodeExecution: the controller does not allow it; start it with --allow-code-execution, or leave \
                       such test sets out";
        return Err(Invalid::new(reasons::CODE_EXECUTION_FORBIDDEN, message));
    }
    let of_name = spec.test_set.as_ref().map(|name| TestSet {
        name: name.clone(),
        harness: Harness::EvalScope,
        dataset: None,
        subsets: Vec::new(),
        claim_name: None,
        path: None,
        limit: None,
        metric: None,
        minimum: None,
        regression_budget_points: None,
    });
    let given = of_name.iter().chain(&spec.test_sets).enumerate();
    let sets: Result<Vec<ValidSet>, Invalid> =
        given.map(|(index, set)| test_set(evaluation, set, index, confidence, settings)).collect();
    let sets = sets?;
    if sets.is_empty() {
        return Err(Invalid::of_field("spec.testSet", "name a test set, such as cmmlu"));
    }
    if !has_begun {
        sets.iter().enumerate().try_for_each(|(index, set)| can_be_asked(evaluation, set, index))?;
    }
    Ok(ValidEvaluation {
        evaluation: Arc::clone(evaluation),
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        // An object from a cache has a name and a uid.
        owner: evaluation.controller_owner_ref(&()).unwrap_or_default(),
        baseline,
        candidate,
        sets,
        confidence,
    })
}

impl ValidEvaluation {
    pub(crate) fn model(&self, side: Side) -> &Model {
        match side {
            Side::Baseline => &self.baseline,
            Side::Candidate => &self.candidate,
        }
    }
}

fn model(text: &str, field: &str, settings: &Settings, has_begun: bool) -> Result<Model, Invalid> {
    if let Some(inference) = text.strip_prefix(RUNNING_SERVER) {
        return Ok(Model::Served { inference: inference.to_owned() });
    }
    if let Some(given) = text.strip_prefix(ENDPOINT) {
        let (url, model) = given.split_once('#').map_or((given, None), |(url, model)| (url, Some(model)));
        if !has_begun && !is_allowed(url, &settings.allowed_endpoints) {
            let message = format!(
                "{field}: the controller does not allow {url}; add it to the controller's --allowed-endpoints, or serve the \
                 model with an AIInference"
            );
            return Err(Invalid::new(reasons::ENDPOINT_NOT_ALLOWED, message));
        }
        return Ok(Model::Endpoint {
            url: url.trim_end_matches('/').to_owned(),
            model: model.map(str::to_owned),
        });
    }
    if text.starts_with('/') {
        return Ok(Model::Output { path: text.trim_end_matches('/').to_owned() });
    }
    let source = source(text, settings.library.as_ref()).map_err(|why| Invalid::of_field(field, why))?;
    Ok(Model::Source(source))
}

/// The API server would refuse the pods, after the server has taken its GPUs.
fn requests_are_within_limits(field: &str, resources: Option<&Resources>) -> Result<(), Invalid> {
    let Some(Resources { requests, limits }) = resources else { return Ok(()) };
    let above = requests.iter().find_map(|(name, Quantity(request))| {
        let Quantity(limit) = limits.get(name)?;
        is_less(limit, request).then_some((name, request, limit))
    });
    let Some((name, request, limit)) = above else { return Ok(()) };
    let why =
        format!("{request} is above the limit {limit}; create the evaluation again with at most {limit}");
    Err(Invalid::of_field(&format!("{field}.requests[{name}]"), why))
}

/// Scheme, host and port.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |scheme| scheme.saturating_add(3));
    let end =
        url.get(host..).and_then(|rest| rest.find('/')).map_or(url.len(), |path| host.saturating_add(path));
    url.get(..end).unwrap_or(url)
}

/// Equal to an allowed URL, or below it. A URL is compared by its text: one with another host is never below.
fn is_allowed(url: &str, allowed: &[String]) -> bool {
    // A segment `..` would lead out of the allowed path.
    !url.split('/').any(|segment| segment == "..")
        && allowed.iter().any(|allowed| {
            let rest = url.strip_prefix(allowed.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

/// A model by its location, or by its name in the library or on ModelScope.
pub(crate) fn source(text: &str, library: Option<&Library>) -> Result<ModelSource, InvalidSource> {
    if text.contains("://") {
        return text.parse();
    }
    // Checked as a model of a hub first, so that a name cannot lead out of the library.
    let of_hub: ModelSource = format!("{}{text}", Hub::ModelScope.scheme()).parse()?;
    match (&of_hub, library) {
        // A library has no revisions.
        (ModelSource::Hub { id, revision: None, .. }, Some(library)) => library.source(id),
        _ => Ok(of_hub),
    }
}

fn test_set(
    evaluation: &ModelEvaluation,
    set: &TestSet,
    index: usize,
    confidence: Confidence,
    settings: &Settings,
) -> Result<ValidSet, Invalid> {
    let spec = &evaluation.spec;
    let TestSet { name, harness, dataset, subsets, claim_name, path, limit, metric, .. } = set;
    let field = |field: &str| match &spec.test_set {
        Some(_) => format!("spec.{field}"),
        None => format!("spec.testSets[{index}].{field}"),
    };
    let points = set.regression_budget_points.as_ref().unwrap_or(&spec.regression_budget_points);
    let budget =
        Budget::parse(points).map_err(|why| Invalid::of_field(&field("regressionBudgetPoints"), why))?;
    let minimum = set.minimum.as_deref().map(Minimum::parse).transpose();
    let minimum = minimum.map_err(|why| Invalid::of_field(&field("minimum"), why))?;
    let known = evaluation.status.as_ref().and_then(|status| status.resolved.as_ref());
    let known = known.and_then(|resolved| match harness {
        Harness::EvalScope => resolved.evalscope_image.as_ref(),
        Harness::LmEval => resolved.lm_eval_image.as_ref(),
    });
    let image = spec.image.as_ref().or(known).or(match harness {
        Harness::EvalScope => settings.evalscope_image.as_ref(),
        Harness::LmEval => settings.lm_eval_image.as_ref(),
    });
    let Some(image) = image else {
        let message = format!(
            "no image with {} is known: set spec.image, or start the controller with --{}-image",
            harness.as_str(),
            harness.as_str()
        );
        return Err(Invalid::new(reasons::HARNESS_IMAGE_MISSING, message));
    };
    let alias = ALIASES.iter().find(|(alias, _)| alias == name).map(|(_, dataset)| *dataset);
    let dataset = dataset.as_deref().or(alias).unwrap_or(name).to_owned();
    Ok(ValidSet {
        name: name.clone(),
        file: file(name),
        harness: *harness,
        image: image.clone(),
        questions: match claim_name {
            Some(claim) => Questions::Claim { claim: claim.clone(), path: path.clone() },
            None if spec.allow_online => Questions::Online,
            None => Questions::Image(format!("{IMAGE_FOLDER}/{dataset}")),
        },
        dataset,
        subsets: subsets.clone(),
        limit: *limit,
        metric: metric.clone(),
        rules: Rules { budget, confidence, minimum },
    })
}

/// The runner would refuse the others, after a server has loaded its model on GPUs.
fn can_be_asked(evaluation: &ModelEvaluation, set: &ValidSet, index: usize) -> Result<(), Invalid> {
    let spec = &evaluation.spec;
    let question = Question {
        harness: set.harness,
        requests: spec.requests,
        dataset: &set.dataset,
        has_files: set.questions != Questions::Online,
        allow_code_execution: spec.allow_code_execution,
    };
    let Some(refusal) = refusal(&question) else { return Ok(()) };
    let of_set = match &spec.test_set {
        Some(_) => "spec.testSet".to_owned(),
        None => format!("spec.testSets[{index}]"),
    };
    let (reason, message) = match (refusal, &set.questions) {
        (Refusal::NoCompletions, _) => {
            (reasons::INVALID_SPEC, format!("spec.requests: {}: {refusal}", set.dataset))
        }
        // Most such test sets are meant to be tasks of lm-eval itself, which run no code of a user.
        (Refusal::TaskFiles(task), Questions::Image(folder)) => {
            let message = format!(
                "{of_set}: the task files of {task} would be in {folder} of the image: set allowOnline to load the \
                 task of lm-eval from a hub; task files, in the image or in claimName, need allowCodeExecution"
            );
            (reasons::INVALID_SPEC, message)
        }
        (Refusal::RunsCode(_) | Refusal::TaskFiles(_), _) => {
            (reasons::CODE_EXECUTION_FORBIDDEN, format!("{of_set}: {refusal}"))
        }
    };
    Err(Invalid::new(reason, format!("{message}; create the evaluation again")))
}

/// A name that the runner takes for a file, and that no other test set has.
fn file(name: &str) -> String {
    let is_plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "._-".contains(char);
    if name.len() <= LONGEST_FILE && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("set-{}", digest(name, 8))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{evaluation, settings};

    fn valid(fields: &Value, settings: &Settings) -> Result<ValidEvaluation, Invalid> {
        validate(&Arc::new(evaluation(fields)), settings)
    }

    #[test]
    fn each_form_of_a_model_is_known() {
        let settings = Settings { allowed_endpoints: vec!["https://api.example.com/".into()], ..settings() };
        let of = |text: &str| valid(&json!({"candidateModel": text}), &settings).map(|valid| valid.candidate);
        assert_eq!(of("aiinference/chat"), Ok(Model::Served { inference: "chat".into() }));
        let endpoint = |url: &str, model: Option<&str>| {
            Ok(Model::Endpoint { url: url.into(), model: model.map(str::to_owned) })
        };
        assert_eq!(
            of("endpoint:https://api.example.com/v1#qwen"),
            endpoint("https://api.example.com/v1", Some("qwen"))
        );
        assert_eq!(of("endpoint:https://api.example.com/v1/"), endpoint("https://api.example.com/v1", None));
        assert_eq!(of("/checkpoints/a"), Ok(Model::Output { path: "/checkpoints/a".into() }));
        for (text, source) in [
            ("a/c", "ms://a/c"),
            ("a/c@v1", "ms://a/c@v1"),
            ("hf://a/c", "hf://a/c"),
            ("pvc://m/x", "pvc://m/x"),
        ] {
            assert_eq!(of(text), Ok(Model::Source(source.parse().unwrap())), "{text}");
        }
        let library = Settings { library: Some(Library::parse("s3://m/hub/{id}").unwrap()), ..settings };
        let of = valid(&json!({"candidateModel": "a/c"}), &library).unwrap().candidate;
        assert_eq!(of, Model::Source("s3://m/hub/a/c".parse().unwrap()));
    }

    #[test]
    fn an_endpoint_that_is_not_allowed_is_refused() {
        let settings =
            Settings { allowed_endpoints: vec!["https://api.example.com/v1".into()], ..settings() };
        for url in [
            "https://api.example.com.evil.example/v1",
            "https://api.example.com/v12",
            "http://api.example.com/v1",
            "https://api.example.com/v1/../admin",
        ] {
            let refused =
                valid(&json!({"candidateModel": format!("endpoint:{url}")}), &settings).unwrap_err();
            assert_eq!(refused.reason, reasons::ENDPOINT_NOT_ALLOWED, "{url}");
            assert!(refused.message.contains("--allowed-endpoints"), "{}", refused.message);
        }
    }

    #[test]
    fn a_request_above_its_limit_is_refused_with_its_field() {
        let amounts =
            |request: &str| json!({"requests": {"cpu": "1", "memory": request}, "limits": {"memory": "1Gi"}});
        for (field, fields) in [
            ("spec.resources", json!({"resources": amounts("1025Mi")})),
            ("spec.server.resources", json!({"server": {"resources": amounts("1025Mi")}})),
            ("spec.helperResources", json!({"helperResources": amounts("1025Mi")})),
        ] {
            let refused = valid(&fields, &settings()).unwrap_err();
            assert_eq!(refused.reason, reasons::INVALID_SPEC);
            let begin = format!("{field}.requests[memory]: 1025Mi is above the limit 1Gi");
            assert!(refused.message.starts_with(&begin), "{}", refused.message);
        }
        assert!(valid(&json!({"resources": amounts("1024Mi")}), &settings()).is_ok());
        // An upgrade ends no run.
        let mut begun = evaluation(&json!({"server": {"resources": amounts("2Gi")}}));
        begun.status = Some(serde_json::from_value(json!({"startTime": "2026-01-01T12:00:00Z"})).unwrap());
        assert!(validate(&Arc::new(begun), &settings()).is_ok());
    }

    #[test]
    fn a_key_is_not_sent_to_another_server() {
        let allowed = ["https://a.example", "https://b.example"].map(str::to_owned).to_vec();
        let settings = Settings { allowed_endpoints: allowed, ..settings() };
        let of = |candidate: &str| {
            let fields = json!({"apiKeySecretName": "key", "baselineModel": "endpoint:https://a.example/v1#old",
                "candidateModel": candidate});
            valid(&fields, &settings).map(drop)
        };
        assert_eq!(of("endpoint:https://a.example/v1#new"), Ok(()));
        assert!(
            of("endpoint:https://b.example/v1").unwrap_err().message.starts_with("spec.apiKeySecretName")
        );
    }

    #[test]
    fn a_test_set_has_the_dataset_of_its_alias_and_questions_in_the_image() {
        let set = |fields: &Value| valid(fields, &settings()).unwrap().sets.remove(0);
        let of_alias = set(&json!({"testSet": "mmlu-zh"}));
        assert_eq!((&*of_alias.dataset, &*of_alias.file), ("cmmlu", "mmlu-zh"));
        assert_eq!(of_alias.questions, Questions::Image("/datasets/cmmlu".into()));
        let given = json!({"testSets": [{"name": "Ours", "dataset": "general_mcq", "claimName": "questions", "path": "a/b",
            "regressionBudgetPoints": "0.5", "minimum": "70"}]});
        let own = set(&given);
        assert_eq!(own.questions, Questions::Claim { claim: "questions".into(), path: Some("a/b".into()) });
        assert_eq!(own.rules.budget.shown(), "0.50");
        assert!(own.file.starts_with("set-") && own.rules.minimum.is_some(), "{}", own.file);
    }

    #[test]
    fn what_the_controller_does_not_allow_or_does_not_have_is_named_with_its_option() {
        let none = Settings { evalscope_image: None, ..settings() };
        for (fields, settings, reason, option) in [
            (json!({"allowOnline": true}), settings(), reasons::DATASET_ONLINE_FORBIDDEN, "--allow-online"),
            (
                json!({"allowCodeExecution": true}),
                settings(),
                reasons::CODE_EXECUTION_FORBIDDEN,
                "--allow-code-execution",
            ),
            (json!({}), none, reasons::HARNESS_IMAGE_MISSING, "--evalscope-image"),
            (
                json!({"serviceAccountName": "controller"}),
                settings(),
                reasons::INVALID_SPEC,
                "create the evaluation again",
            ),
        ] {
            let refused = valid(&fields, &settings).unwrap_err();
            assert_eq!(refused.reason, reason);
            assert!(refused.message.contains(option), "{}", refused.message);
        }
        let online = Settings { allow_online: true, ..settings() };
        let sets = valid(&json!({"allowOnline": true}), &online).unwrap().sets;
        assert_eq!(sets[0].questions, Questions::Online);
    }

    /// The runner would refuse it after a server has loaded its model.
    #[test]
    fn a_test_set_that_cannot_be_asked_is_refused_before_there_is_a_server() {
        let settings = Settings {
            lm_eval_image: Some("lm-eval:1".to_owned()),
            allow_code_execution: true,
            ..settings()
        };
        let code = reasons::CODE_EXECUTION_FORBIDDEN;
        for (fields, reason, words) in [
            (
                json!({"requests": "Completions"}),
                reasons::INVALID_SPEC,
                "spec.requests: cmmlu: evalscope sends chat",
            ),
            (json!({"testSet": "humaneval"}), code, "spec.testSet: humaneval runs code"),
            (
                json!({"testSets": [{"name": "a"}, {"name": "b", "dataset": "mbpp_plus"}]}),
                code,
                "spec.testSets[1]: mbpp_plus runs code",
            ),
            (
                json!({"testSets": [{"name": "gsm8k", "harness": "lm-eval", "claimName": "tasks"}]}),
                code,
                "spec.testSets[0]: gsm8k has task files of lm-eval",
            ),
            (
                json!({"testSets": [{"name": "gsm8k", "harness": "lm-eval"}]}),
                reasons::INVALID_SPEC,
                "spec.testSets[0]: the task files of gsm8k would be in /datasets/gsm8k of the image: set allowOnline",
            ),
        ] {
            let refused = valid(&fields, &settings).unwrap_err();
            assert_eq!(refused.reason, reason, "{fields}");
            assert!(refused.message.starts_with(words), "{}", refused.message);
            // An upgrade ends no run.
            let mut begun = evaluation(&fields);
            begun.status =
                Some(serde_json::from_value(json!({"startTime": "2026-01-01T12:00:00Z"})).unwrap());
            assert!(validate(&Arc::new(begun), &settings).is_ok(), "{fields}");
        }
        for fields in [
            json!({"testSet": "humaneval", "allowCodeExecution": true}),
            json!({"testSets": [{"name": "gsm8k", "harness": "lm-eval"}], "requests": "Completions",
                "allowCodeExecution": true}),
        ] {
            assert!(valid(&fields, &settings).is_ok(), "{fields}");
        }
        // Tasks of the harness itself are no files of the user.
        let online = Settings { allow_online: true, ..settings };
        let fields = json!({"testSets": [{"name": "gsm8k", "harness": "lm-eval"}], "allowOnline": true});
        assert!(valid(&fields, &online).is_ok());
    }

    /// Another release may have another default.
    #[test]
    fn the_image_that_was_resolved_stays() {
        let mut with_status = evaluation(&json!({}));
        let status = json!({"resolved": {"evalscopeImage": "evalscope:1"}});
        with_status.status = Some(serde_json::from_value(status).unwrap());
        let none = Settings { evalscope_image: None, ..settings() };
        assert_eq!(validate(&Arc::new(with_status), &none).unwrap().sets[0].image, "evalscope:1");
    }
}
