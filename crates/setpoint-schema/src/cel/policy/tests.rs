use serde_json::json;

use super::*;

fn environment() -> Environment {
    let request = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    Environment::new().dynamic("object").dynamic("oldObject").typed("request", &request).opaque("authorizer")
}

fn run(text: &str, object: &Value) -> Result<Value, String> {
    let expression = Expression::compile(text, &environment(), Gives::Any)?;
    let (old, request) = (Value::Null, json!({"name": "x"}));
    let values = vec![("object", object), ("oldObject", &old), ("request", &request)];
    Scope::new(values, &[], Some(Arc::new(Nobody))).enter(|evaluation| evaluation.run(&expression))
}

struct Nobody;

impl Authorizer for Nobody {
    fn check(&self, check: &Check) -> Decision {
        Decision { allowed: check.verb == "get" && check.resource == "pods", reason: "because".to_owned() }
    }

    fn request_resource(&self) -> Check {
        Check { resource: "pods".to_owned(), ..Check::default() }
    }
}

#[test]
fn expressions_see_objects_as_they_are() {
    let object = json!({"spec": {"replicas": 3, "a-b": "x", "at": "2026-01-01T00:00:00Z", "ratio": 0.5}});
    for (text, value) in [
        ("object.spec.replicas <= 3", json!(true)),
        ("object.spec['a-b'] + '!'", json!("x!")),
        ("object.spec.at.startsWith('2026')", json!(true)),
        ("has(object.spec.none) || oldObject == null", json!(true)),
        ("request.name", json!("x")),
        ("object.spec.?none.orValue(7)", json!(7)),
        ("{'a': [dyn(1), null]}", json!({"a": [1, null]})),
        ("authorizer.group('').resource('pods').namespace('n').check('get').allowed()", json!(true)),
        ("authorizer.group('').resource('pods').check('delete').reason()", json!("because")),
        ("authorizer.requestResource.check('get').allowed()", json!(true)),
        ("authorizer.serviceAccount('a', 'b').path('/x').check('get').allowed()", json!(false)),
    ] {
        assert_eq!(run(text, &object), Ok(value), "{text}");
    }
    assert_eq!(run("object.spec.none == 1", &object), Err("no such key: none".into()));
    // What has no fields is not `false`.
    for (text, key) in [
        ("oldObject.metadata.name != 'a'", "metadata"),
        ("object.spec.replicas.x == 1", "x"),
        ("has(oldObject.metadata.name)", "metadata"),
        ("object.spec.at.x", "x"),
    ] {
        assert_eq!(run(text, &object), Err(format!("no such key: {key}")), "{text}");
    }
    assert_eq!(run("has(oldObject.metadata)", &object), Ok(json!(false)));
    assert_eq!(run("object.?spec.replicas.orValue(1)", &object), Ok(json!(3)));
    assert_eq!(run("[dyn(1)].all(x, x.y == 1)", &object), Err("no such overload".into()));
    assert_eq!(run("object.spec.at + 1 == 2", &object), Err("no such overload".into()));
    assert_eq!(run("[1][int('9')]", &object), Err("index out of bounds: 9".into()));
}

#[test]
fn what_cannot_be_is_found_before_it_runs() {
    let compile = |text, gives| Expression::compile(text, &environment(), gives).unwrap_err();
    for (text, gives, problem) in [
        ("1", Gives::Bool, "must evaluate to bool but got int"),
        ("object.x", Gives::Bool, "must evaluate to bool but got dyn"),
        ("object.x == 2", Gives::String, "must evaluate to string but got bool"),
        ("1", Gives::StringOrNull, "must evaluate to one of [string null_type] but got int"),
        (
            "request.foo == 1",
            Gives::Bool,
            "compilation failed: ERROR: <input>:1:8: undefined field 'foo'\n | request.foo == 1\n | .......^",
        ),
        (
            "variables.x == 1",
            Gives::Bool,
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.x == 1\n | ^",
        ),
    ] {
        assert_eq!(compile(text, gives), problem, "{text}");
    }
}

#[test]
fn variables_are_evaluated_when_they_are_needed() {
    let mut environment = environment().with_variables();
    let mut variables = Vec::new();
    for (name, text) in [("a", "object.none"), ("b", "variables.a == 1"), ("c", "object.k + 'c'")] {
        let expression = Expression::compile(text, &environment, Gives::Any).unwrap();
        environment.variable(name, Some(&expression));
        variables.push((name.to_owned(), expression));
    }
    let object = json!({"k": "v"});
    let scope = Scope::new(vec![("object", &object)], &variables, None);
    let run = |text: &str| {
        let expression = Expression::compile(text, &environment, Gives::Any).unwrap();
        scope.enter(|evaluation| evaluation.run(&expression))
    };
    assert_eq!(run("variables.c"), Ok(json!("vc")));
    assert_eq!(run("[1, 2].all(x, variables.c == 'vc')"), Ok(json!(true)));
    assert_eq!(run("has(object.none) && variables.b"), Ok(json!(false)));
    let why = r#"composited variable "b" fails to evaluate: composited variable "a" fails to evaluate: no such key: none"#;
    assert_eq!(run("variables.b"), Err(why.into()));
    let problem = Expression::compile("variables.d", &environment, Gives::Any).unwrap_err();
    assert!(problem.contains("undefined field 'd'"), "{problem}");
}

#[test]
fn objects_are_made_where_they_may_be() {
    let text =
        "Object{spec: Object.spec{replicas: object.n, ?paused: optional.none(), l: [Object.spec.l{a: 1}]}}";
    let object = json!({"n": 2});
    let made = environment().constructing();
    let expression = Expression::compile(text, &made, Gives::Object).unwrap();
    let scope = Scope::new(vec![("object", &object)], &[], None);
    let value = scope.enter(|evaluation| evaluation.run(&expression));
    assert_eq!(value, Ok(json!({"spec": {"replicas": 2, "l": [{"a": 1}]}})));
    let problem = Expression::compile(text, &environment(), Gives::Any).unwrap_err();
    assert!(problem.contains("undeclared reference to 'Object"), "{problem}");
}

#[test]
fn what_all_expressions_cost_together_is_bounded() {
    let compile = |text: &str| Expression::compile(text, &environment(), Gives::Any).unwrap();
    let nested = |levels: usize| {
        (0..levels).fold("true".to_owned(), |inner, level| {
            format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x{level}, {inner})")
        })
    };
    let too_costly = "operation cancelled: actual cost limit exceeded";
    let checks = |count: usize| {
        vec!["authorizer.group('').resource('pods').check('get').allowed()"; count].join(" && ")
    };
    let object = json!({});
    let old = Value::Null;
    let values = vec![("object", &object), ("oldObject", &old)];
    Scope::new(values, &[], Some(Arc::new(Nobody))).enter(|evaluation| {
        let run = |text: &str| evaluation.run(&compile(text));
        for text in [
            nested(8),
            format!("oldObject != null || {}", nested(8)),
            format!("oldObject == null && !({})", nested(8)),
            format!("object.none == 1 || {}", nested(8)),
            format!("oldObject == null ? {} : true", nested(8)),
            checks(3),
            format!("[1].all(x, {})", checks(3)),
        ] {
            assert_eq!(run(&text), Err(too_costly.into()), "{text}");
        }
    });
    let values = vec![("object", &object), ("oldObject", &old)];
    Scope::new(values, &[], Some(Arc::new(Nobody))).enter(|evaluation| {
        let run = |text: &str| evaluation.run(&compile(text));
        // What is not run costs nothing.
        for text in [
            format!("oldObject == null || {}", nested(8)),
            format!("!(oldObject != null && {})", nested(8)),
            format!("oldObject == null ? true : {}", nested(8)),
            format!("!authorizer.group('').resource('pods').check('list').allowed() || {}", checks(3)),
        ] {
            for _ in 0..10 {
                assert_eq!(run(&text), Ok(json!(true)), "{text}");
            }
        }
        // The last one has asked ten times: 3.5 of the ten limits.
        let two = checks(2);
        let runs = (0..1000).take_while(|_| !evaluation.is_exhausted() && run(&two).is_ok()).count();
        assert_eq!(runs, 10);
    });
}

#[test]
fn variables_cost_what_they_run() {
    let checks = ["authorizer.group('').resource('pods').check('get').allowed()"; 3].join(" && ");
    let mut environment = environment().with_variables();
    let mut variables = Vec::new();
    for (name, text) in [
        ("guarded", format!("object.k != 'v' || ({checks})")),
        ("one", format!("object.k == 'v' ? [1, 2] : ({checks}) ? [1] : [2]")),
    ] {
        let expression = Expression::compile(&text, &environment, Gives::Any).unwrap();
        environment.variable(name, Some(&expression));
        variables.push((name.to_owned(), expression));
    }
    let run = |text: &str, object: &Value| {
        let expression = Expression::compile(text, &environment, Gives::Any).unwrap();
        let scope = Scope::new(vec![("object", object)], &variables, Some(Arc::new(Nobody)));
        scope.enter(|evaluation| evaluation.run(&expression))
    };
    assert_eq!(run("variables.guarded", &json!({"k": "w"})), Ok(json!(true)));
    let why = run("variables.guarded", &json!({"k": "v"})).unwrap_err();
    assert!(why.ends_with("operation cancelled: actual cost limit exceeded"), "{why}");
    assert_eq!(run("variables.one", &json!({"k": "v"})), Ok(json!([1, 2])));
    // Nothing bounds beforehand what is made of it.
    assert_eq!(run("variables.one.map(x, x)", &json!({"k": "v"})), Ok(json!([1, 2])));
}
