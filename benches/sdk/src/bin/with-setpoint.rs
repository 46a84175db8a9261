//! The operator, written with Setpoint: with whole children in its caches, or where the variable SLIM is set with slim ones.

use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result};
use setpoint_bench_sdk::family::{self, RedisCluster};
use setpoint_bench_sdk::slim::{SlimConfigMap, SlimService, SlimStatefulSet};
use setpoint_bench_sdk::{Counting, Gauge};

struct Redis(Arc<Gauge>);

impl Reconciler for Redis {
    type Object = RedisCluster;

    async fn reconcile(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        self.0.reconcile(&cluster.name_any());
        cx.apply(family::config_map(&cluster)).await?;
        cx.apply(family::service(&cluster)).await?;
        let servers = cx.apply(family::stateful_set(&cluster)).await?;
        cx.status(family::status(&cluster, family::ready(&servers))).await?;
        Ok(Action::await_change())
    }
}

struct SlimRedis(Arc<Gauge>);

impl Reconciler for SlimRedis {
    type Object = RedisCluster;

    async fn reconcile(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        self.0.reconcile(&cluster.name_any());
        cx.apply(family::config_map(&cluster)).await?;
        cx.apply(family::service(&cluster)).await?;
        cx.apply(family::stateful_set(&cluster)).await?;
        let servers = cx.get::<SlimStatefulSet>(cluster.name_any()).await?;
        let ready = servers.and_then(|servers| servers.status.clone()).unwrap_or_default().ready_replicas;
        cx.status(family::status(&cluster, ready)).await?;
        Ok(Action::await_change())
    }
}

fn main() -> ExitCode {
    let gauge = Gauge::start();
    let operator = Operator::new("redis-operator");
    let operator = if std::env::var_os("SLIM").is_some() {
        let controller = Controller::new(SlimRedis(Arc::clone(&gauge))).concurrency(4);
        operator
            .controller(controller.owns::<SlimConfigMap>().owns::<SlimService>().owns::<SlimStatefulSet>())
    } else {
        let controller = Controller::new(Redis(Arc::clone(&gauge))).concurrency(4);
        operator.controller(controller.owns::<ConfigMap>().owns::<Service>().owns::<StatefulSet>())
    };
    operator.requests(move |stack| stack.faults(Counting(gauge))).main()
}
