"""Websocket routes."""

from django.urls import path

from rollouts.consumers import ChangesConsumer

websocket_urlpatterns = [path("ws/", ChangesConsumer.as_asgi())]
